"""A session reads tokens in another order than the raster's, and sees what it is told to."""

import torch
from fakes import VARIANTS, random_model, random_tokens

from superres.nn.torch_model import StepModel

SPAN = 12  # positions that the readings are apart at most


def opened(variant):
    model = StepModel(random_model(VARIANTS[variant]))
    source, target = random_tokens(VARIANTS[variant], 2)
    seen = torch.zeros(2, model.length, dtype=torch.bool)
    return model, model.session(source, SPAN), torch.nn.functional.pad(target, (1, 0)), seen


def reading(session, tokens, seen, *places):
    """Read the tokens [B, 1 + T] at `places`, and mark them as seen before."""
    place = torch.tensor(places).expand(len(tokens), -1)
    seen.scatter_(1, place, True)
    return session.read_at(tokens.gather(1, place), place, seen)


@torch.inference_mode()
def test_the_rasters_order_is_that_of_steps():
    _, session, tokens, seen = opened("base aids")
    stepped = opened("base aids")[1]
    stepped.resize(4)
    for start in range(0, SPAN, 4):
        scores, hidden = reading(session, tokens, seen, *range(start, start + 4))
        output = stepped.step(tokens[:, start : start + 4], torch.full((2,), start))
        torch.testing.assert_close(scores, output.scores)
        torch.testing.assert_close(hidden, output.state.hidden)


@torch.inference_mode()
def test_a_column_sees_what_was_read_up_to_its_position():
    """Attention knows no order but positions: once a gap is read, the scores are the raster's."""
    _, raster, tokens, everything = opened("no neighbourhood")
    reading(raster, tokens, everything, *range(8))
    wanted = reading(raster, tokens, everything, 8, 9)[1]
    _, session, _, seen = opened("no neighbourhood")
    reading(session, tokens, seen, *range(5))
    ahead = reading(session, tokens, seen, 8, 9)[1]
    reading(session, tokens, seen, 7, 5, 6)
    late = reading(session, tokens, seen, 9, 8)[1].flip(1)
    torch.testing.assert_close(late, wanted)
    assert not torch.allclose(ahead, wanted, atol=0.01)
    # What is not seen has no influence, though the cache holds its keys.
    seen[:, 5:8] = False
    torch.testing.assert_close(reading(session, tokens, seen, 8, 9)[1], ahead)


@torch.inference_mode()
def test_each_column_may_see_what_the_others_do_not():
    """Neither the keys of unseen positions nor the tokens there, as neighbours, have an
    influence."""
    _, alone, tokens, seen = opened("base aids")
    reading(alone, tokens, seen, *range(5))
    wanted = [reading(alone, tokens, seen, place)[1] for place in (8, 9)]
    _, session, _, seen = opened("base aids")
    reading(session, tokens, seen, *range(5))
    place = torch.tensor([[5, 6, 7, 8, 9]]).expand(2, -1)
    own = torch.nn.functional.one_hot(place, seen.shape[1]).bool()
    own[:, 4, 8] = True
    hidden = session.read_at(tokens.gather(1, place), place, seen.unsqueeze(1) | own)[1]
    torch.testing.assert_close(hidden[:, 3:], torch.cat(wanted, dim=1))

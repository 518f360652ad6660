"""Mutation check: the product is broken in one place at a time, and a test that passed before must
then fail.

It shows that the tests of decoding can fail. `make mutations` runs it; `make test` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model

from superres.config import DecodeConfig
from superres.decoding.plain import blockwise, sampling
from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.lookahead import iteration as lookahead
from superres.decoding.plain.lookahead import verification as candidates
from superres.decoding.plain.noise import Noise
from superres.decoding.plain.sampling import SpeculativeSampler
from superres.decoding.proposers.draft import DraftProposer
from superres.nn import cache, torch_step, tree_attention
from superres.nn.cache import KeyValueCache
from superres.nn.torch_step import StepSession
from superres.nn.tree_attention import TreeCache, TreeSession
from tests.decoding import test_lookahead, test_noise, test_speculative_blocks
from tests.nn.helpers import BRANCHY, check_tree_steps
from tests.proofs import test_blockwise, test_rollback, test_speculative, test_step


class Mutation(NamedTuple):
    """One broken place: the attribute `name` of a module or class."""

    owner: Any
    name: str
    broken: Callable[[Any], Any]
    """Returns the replacement of the attribute, given the original."""
    check: Callable[[], None]
    """Passes with the original and raises an AssertionError with the replacement."""


WIDE = test_step.WIDE


class StaleCache(KeyValueCache):
    """Does not overwrite the slot of a rejected proposal."""

    def locate(self, position, reach):
        high = getattr(self, "high", torch.full((self.batch, 1), -1))
        self.keep = (position <= high)[None, :, None, :].expand(2, -1, self.heads, -1).flatten()
        self.high = torch.maximum(high, position[:, -1:])
        return super().locate(position, reach)

    def write(self, layer, key, value, index):
        flat = self.store[layer].view(-1, self.size)
        before = flat[index]
        ring = super().write(layer, key, value, index)
        flat[index[self.keep]] = before[self.keep]
        return ring


def advance_by_the_whole_step(step):
    def advancing(session, tokens, position):
        position = getattr(session, "following", position)
        session.following = position + (session.width if hasattr(session, "following") else 1)
        return step(session, tokens, position)

    return advancing


def keep_rejected_neighbours(read_input):
    def without_rewriting(session, *arguments):
        before = session.deviation.clone()
        result = read_input(session, *arguments)
        session.deviation.copy_(torch.where(before != 0, before, session.deviation))
        return result

    return without_rewriting


class Forgetful(TreeCache):
    """Keeps only the first column of a path."""

    def commit(self, columns, position):
        super().commit(columns[:, :1], position[:, :1])


class Nosy(TreeCache):
    """Shows a column its neighbour in the place of its parent."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.ancestors = torch.where(self.ancestors == 1, 2, self.ancestors)


def keep_deviations_of_another_path(keep):
    def careless(session, columns):
        session.step_deviation = session.step_deviation.flip(1)
        keep(session, columns)

    return careless


def check_steps(most=None, **changes):
    test_step.check_steps(random_model(replace(WIDE, **changes)), 5, most=most)


def check_tree(config):
    check_tree_steps(random_model(config), BRANCHY, steps=5)


CACHES = {
    **{f"the ring is {missing} slots too small": Mutation(
        cache, "slot_count",
        lambda count, missing=missing: lambda config, width: count(config, width) - missing,
        partial(check_steps, most=2)) for missing in (1, 4)},
    "a rejected proposal stays in the cache": Mutation(torch_step, "KeyValueCache",
                                                       lambda _: StaleCache, check_steps),
    "a session advances by the whole step": Mutation(StepSession, "step", advance_by_the_whole_step,
                                                     check_steps),
    "neighbours keep rejected tokens": Mutation(
        StepSession, "_features", keep_rejected_neighbours,
        partial(check_steps, aligned_conditioning=False)),
    **{f"the tree's cache is {broken.__name__}": Mutation(
        tree_attention, "TreeCache", lambda _, broken=broken: broken,
        partial(check_tree, VARIANTS["text"]))
       for broken in (Forgetful, Nosy)},
    "a tree keeps deviations of another path": Mutation(
        TreeSession, "commit", keep_deviations_of_another_path,
        partial(check_tree, replace(SMALL, aligned_conditioning=False))),
}


def trust_the_proposer_with_the_first_token(propose):
    def careless(decoding, state, *arguments):
        propose(decoding, state, *arguments)
        state.proposals[:, 0] = state.proposals[:, 1]

    return careless


def propose_one_token_later(propose):
    def forgetful(proposer, context, offsets):
        return propose(
            proposer, replace(context, position=context.position + (context.position > 0)), offsets
        )

    return forgetful


def check_exact():
    test_blockwise.check_exact("base aids", DecodeConfig(block_size=3))


def check_draft():
    test_rollback.test_a_draft_goes_on_from_the_committed_tokens.hypothesis.inner_test("base aids",
                                                                                       4, 0)


LOOP = {
    "the proposer chooses the first token": Mutation(
        PlainDecoder, "propose", trust_the_proposer_with_the_first_token, check_exact),
    "a whole block is accepted": Mutation(
        blockwise, "accepted_length",
        lambda _: lambda passed, minimum, room: room.clamp(max=passed.shape[1] + 1), check_exact),
    "a draft does not roll back": Mutation(DraftProposer, "propose", propose_one_token_later,
                                           check_draft),
}


def always(accept):
    return lambda self, criterion, proposed, *given: torch.ones_like(proposed, dtype=torch.bool)


def by_p_alone(accept):
    def careless(self, criterion, proposed, scores, *given):
        own = self.distribution(scores, slice(1, None)).gather(-1, proposed.unsqueeze(-1))
        return (self._uniform(slice(1, None), sampling.VERDICT) < own).squeeze(-1)

    return careless


def one_by_one(accept):
    """Judges every proposal by itself, but draws the token after them as block verification
    does."""
    def separate(self, criterion, proposed, scores, *given):
        accept(self, criterion, proposed, scores, *given)
        return self.draws.uniform < self.draws.ratio()

    return separate


def from_p(first):
    return lambda self, scores, before, index: sampling.draw(
        self.distribution(scores, slice(1)), self._uniform(slice(1), sampling.COMMITTED))


def without_survival(first):
    """Draws from norm(max(0, p - q)) after every number of accepted proposals."""
    def careless(self, scores, before, index):
        if isinstance(before, SpeculativeSampler):
            before = replace(before, rest=lambda p, q, index: sampling.residual(p, q, 1.0))
        return first(self, scores, before, index)

    return careless


def without_offset(uniforms):
    return lambda self, position, number: uniforms(self, position, torch.zeros_like(number))


def without_verdict(verify):
    def every_candidate(distribution, candidates, known, verdict, committed, own):
        return verify(distribution, candidates, known, torch.zeros_like(verdict), committed, own)

    return every_candidate


def check_softmax():
    test_noise.test_choice_samples_the_softmax(1.0)


def check_speculative(way="heads", settings="plain"):
    test_speculative.test_samples_have_the_distribution_of_direct_sampling(
        way, test_speculative.FILTERS[settings]
    )


def check_blocks():
    test_speculative_blocks.check_distribution("others", 3, "plain")


def check_lookahead():
    test_lookahead.test_samples_have_the_distribution_of_direct_sampling(
        "plain", test_lookahead.Crowded)


RULES = {
    "every proposal passes": ("accept", always), "p alone decides": ("accept", by_p_alone),
    "the next token is drawn from p": ("first", from_p),
}
SAMPLING = {
    "noise is uniform": Mutation(
        Noise, "gumbel",
        lambda gumbel: lambda self, position: (-(-gumbel(self, position)).exp()).exp(),
        check_softmax),
    **{f"{rule}, proposals of {way}": Mutation(
        SpeculativeSampler, name, broken, partial(check_speculative, way))
       for rule, (name, broken) in RULES.items() for way in ("heads", "another model")},
    "proposals are judged one by one": Mutation(SpeculativeSampler, "accept", one_by_one,
                                                check_blocks),
    "the residual lacks the survival": Mutation(SpeculativeSampler, "first", without_survival,
                                                check_blocks),
    "blocks share the noise of a position": Mutation(
        Noise, "uniforms", without_offset, partial(check_speculative, "another model")),
    "verdicts and proposals share their noise": Mutation(
        sampling, "VERDICT", lambda _: sampling.PROPOSAL, check_speculative),
    **{f"the filter '{settings}' is not applied": Mutation(
        sampling, "filtered", lambda _: lambda scores, top_k, nucleus: scores,
        partial(check_speculative, settings=settings)) for settings in ("top-3", "nucleus")},
    "a rejected candidate stays in p": Mutation(
        candidates, "without", lambda _: lambda p, tokens, tried: p, check_lookahead),
    "every candidate passes": Mutation(lookahead, "verify_candidates", without_verdict,
                                       check_lookahead),
}


MUTATIONS = {**CACHES, **LOOP, **SAMPLING}
PASSED = set()
"""Checks that have passed with the product as it is; several mutations have the same one."""


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
@torch.inference_mode()
def test_a_broken_product_fails_its_check(mutation, monkeypatch):
    if repr(mutation.check) not in PASSED:
        mutation.check()
        PASSED.add(repr(mutation.check))
    monkeypatch.setattr(mutation.owner, mutation.name,
                        mutation.broken(getattr(mutation.owner, mutation.name)))
    with pytest.raises(AssertionError):
        mutation.check()

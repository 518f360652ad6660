"""Own proposers and criteria, registered or named by installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch
from fakes import TINY, random_model, random_tokens

import superres
from superres.config import CRITERION_NAMES, PROPOSER_NAMES, DecodeConfig, Registry
from superres.config import settings as config_settings
from superres.config.settings import with_plugins
from superres.decoding.acceptance import CRITERIA
from superres.decoding.decode import decode
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError
from superres.nn.engines.torch_model import StepModel


@pytest.fixture(autouse=True)
def restored():
    """Leave no name behind."""
    yield
    for registry in (PROPOSERS, CRITERIA):
        for name in {"mine"} & set(registry):
            del registry[name]


class Wrong(superres.Proposer):
    """Proposes token 1 always."""

    def propose(self, context, offsets):
        return torch.ones(len(context.position), len(offsets), dtype=torch.int64)


class All(superres.Criterion):
    """Accepts everything."""

    rule = None

    def accept(self, proposed, scores, position):
        return torch.ones_like(proposed, dtype=torch.bool)


def test_an_own_proposer_is_exact_and_an_own_criterion_decides():
    assert superres.register_proposer("mine")(Wrong) is Wrong
    superres.register_criterion("mine")(All)
    assert "mine" in PROPOSER_NAMES
    assert "mine" in CRITERION_NAMES
    model = StepModel(random_model(TINY, dtype=torch.float32))
    source = random_tokens(TINY, 2)[0]
    greedy = decode(model, source, DecodeConfig(block_size=1))
    exact = decode(model, source, DecodeConfig(block_size=3, proposer="mine"))
    assert torch.equal(exact.tokens, greedy.tokens)
    loose = decode(model, source, DecodeConfig(block_size=3, proposer="mine", accept="mine"))
    assert max(trace.iterations for trace in loose.traces) <= model.length // 3 + 1
    assert (loose.tokens == 1).float().mean() > 0.6
    superres.register_proposer("mine")(type("Again", (Wrong,), {}))  # a cell that runs again


@pytest.mark.parametrize(("name", "kind", "message"), [
    ("heads", Wrong, "heads is built in; choose another name"), ("a b", Wrong, "a name has letters, digits"),
    ("", Wrong, "a name has letters, digits"), ("mine", All, "mine must be a class derived from superres.Proposer"),
    ("mine", Wrong(), "mine must be a class derived from superres.Proposer"),
])
def test_what_is_no_proposer_is_refused_in_one_line(name, kind, message):
    with pytest.raises(ConfigError, match=message):
        superres.register_proposer(name)(kind)
    assert "mine" not in PROPOSERS


def test_packages_add_their_own_by_entry_points(monkeypatch):
    found = [EntryPoint("mine", "collections:OrderedDict", "group"), EntryPoint("one", "nowhere:x", "group"),
             EntryPoint("broken", "nowhere_at_all:x", "group")]
    monkeypatch.setattr(config_settings, "entry_points", lambda group: found[:2])
    names = with_plugins(["one"], "group")
    assert names == ["one", "mine"]  # the built-in one counts
    registry = Registry(names, {"one": dict}, "group")
    assert registry["mine"].__name__ == "OrderedDict"
    monkeypatch.setattr(config_settings, "entry_points", lambda group: found[2:])
    with pytest.raises(ConfigError, match=r"broken of the package nowhere_at_all:x cannot be imported .*; mend or"):
        Registry(with_plugins(["one"], "group"), {"one": dict}, "group")

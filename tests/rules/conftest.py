"""The rules' names are known to the tests of rules alone."""

from __future__ import annotations

import pytest

from rule import all_rules
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS

REGISTRIES = (CRITERIA, PROPOSERS)
BEFORE = [set(registry.data) for registry in REGISTRIES]
all_rules()
ADDED = [{name: registry.data[name] for name in registry.data.keys() - before}
         for registry, before in zip(REGISTRIES, BEFORE, strict=True)]


def forget():
    for registry, added in zip(REGISTRIES, ADDED, strict=True):
        for name in added:
            del registry[name]


forget()


@pytest.fixture(autouse=True)
def registered():
    for registry, added in zip(REGISTRIES, ADDED, strict=True):
        for name, kind in added.items():
            registry[name] = kind
    yield
    forget()

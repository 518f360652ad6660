"""Proposers: the sources of unverified tokens.

Exact acceptance gives the verifier's own tokens with any proposer; only the number of iterations
differs.
"""

from __future__ import annotations

from superres.config import PROPOSER_NAMES, PROPOSER_PLUGINS, Registry
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.decoding.proposers.lookup import LookupProposer
from superres.decoding.proposers.ngrams import NgramProposer
from superres.decoding.proposers.proposer import Proposer
from superres.decoding.proposers.verifier import HeadProposer, JacobiProposer

PROPOSERS: Registry[type[Proposer]] = Registry(PROPOSER_NAMES, {
    "heads": HeadProposer, "jacobi": JacobiProposer, "draft": DraftProposer, "ngram": NgramProposer,
    "lookup": LookupProposer, "lookahead": LookaheadProposer,
}, PROPOSER_PLUGINS, "Proposer", "proposer")
"""Proposers by name. Proposers that use the heads propose at most one token per head."""

"""Adaptive block sizes of a loaded checkpoint, by its recorded costs; nothing is measured while
decoding."""

from __future__ import annotations

from torch import Tensor

from superres.config import Confidence, DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.block_size import check_options, paying_size
from superres.decoding.confidence import ConfidentBlockSize, usual
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.proposer import Proposer
from superres.nn.torch_model import StepModel


def _draft_step(model: StepModel, proposer: DraftProposer, rows: int) -> float:
    """Return the time of a draft's step of one token, in the unit of the model's costs."""
    draft, own = proposer.draft, model.costs
    if isinstance(draft, StepModel) and draft.costs.is_measured and own.is_measured:
        return draft.costs.of(rows).alone
    return own.of(rows).alone * draft.weight_bytes / model.weight_bytes


class BlockSizes:
    """The adaptive block sizes of one network: by the record `StepModel.costs` of its engine, and
    its `confidence`."""

    confidence: Confidence | None = None

    def __init__(self, model: StepModel) -> None:
        self.model = model

    def get(
        self, options: DecodeConfig, source: Tensor, padding: Tensor | None = None,
        proposer: Proposer | None = None,
    ) -> int | ConfidentBlockSize | None:
        """Return the adaptive block size for `source` [B, S]; None if `options` have a fixed block
        size.

        `proposer` is the one of `options`; None if it needs no resource. Every iteration chooses
        its own size where the probabilities of its proposals are known; other decodes have the size
        that the recorded costs make the fastest. That size is 1 wherever blocks would not pay. It
        depends on the checkpoint, the class of the processor, the options, the number of rows and,
        for text, the length of the sources; not on the machine or its other work.
        """
        if not options.adaptive or not len(source):
            return None
        model, rows = self.model, len(source)
        proposer = proposer or PROPOSERS[options.proposer]()
        costs = model.costs.of(rows)
        times = costs.up_to(check_options(options, model.prediction_heads))
        # one step of the draft per proposal; other proposals cost next to none
        if isinstance(proposer, DraftProposer):
            step = _draft_step(model, proposer, rows)
            times = [time + step * further for further, time in enumerate(times)]
        least = min(len(times), max(options.min_block, proposer.least_block))
        size = paying_size(costs, times, least, usual(self.confidence, options),
                           self._length(source, padding))
        if size == 1 or self.confidence is None or not self._is_confident(options):
            return size
        return ConfidentBlockSize(self.confidence, times, options, model.vocabulary,
                                  model.end_token)

    def _length(self, source: Tensor, padding: Tensor | None) -> float:
        """Return the expected number of target tokens: a sentence is about as long as its
        translation."""
        if self.model.end_token is None:
            return self.model.length
        return source.shape[1] - (0.0 if padding is None else float(padding.sum()) / len(source))

    def _is_confident(self, options: DecodeConfig) -> bool:
        """Return whether every iteration can choose its block size.

        Proposers other than the heads have no known probabilities. Sampling, and criteria without a
        rule, have no known reach. Heads of text have probabilities, but to know one takes all
        scores of a vocabulary: captions took up to 1.18 times as long as with one block size. On an
        accelerator, further proposals cost hardly anything.
        """
        rule = CRITERIA[options.accept](options).rule
        known = options.proposer == "heads" and rule is not None and self.model.end_token is None
        return known and not options.is_sampling and self.model.model.signal.device.type == "cpu"

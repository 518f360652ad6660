"""Scores of translations by blockwise decoding, greedy decoding and beam search: BLEU, chrF, block
sizes and time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.config import BeamConfig, DecodeConfig, require
from superres.decoding.trace import RowTrace
from superres.errors import ConfigError
from superres.evaluation.drawing import Way, in_turns
from superres.evaluation.intervals import accepted_block_size
from superres.evaluation.score_tables import table_lines
from superres.tasks.translation import TextPairs

if TYPE_CHECKING:
    from superres.pipeline.translated import Translated
    from superres.pipeline.translator import Translator

COLUMNS = {
    "bleu": ("BLEU", ".2f"), "chrf": ("chrF", ".2f"),
    "mean_accepted_block_size": ("mean accepted", ".2f"),
    "model_calls_per_sentence": ("model calls", ".1f"), "ms": ("ms/sentence", ".1f"),
    "speed_up": ("speed-up of blockwise", ".2f"),
}
"""Titles and forms of the scores in the table of a report."""


def bleu(texts: Sequence[str], references: Sequence[str], bootstrap: int = 1) -> dict[str, Any]:
    """Return corpus BLEU of `texts` by sacreBLEU (Post 2018): its "score" in 0..100 and its
    "signature".

    With `bootstrap` resamples of the sentences, more than 1, "half_width" is half the width of the
    95 % interval (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation");
    None without, or if some resamples have no match.

    Raises:
        ConfigError: sacreBLEU is not installed.
    """
    return _score("BLEU", texts, references, bootstrap)


def bleu_difference(
    texts: Sequence[str], others: Sequence[str], references: Sequence[str], resamples: int,
) -> dict[str, float]:
    """Return the "difference" of the BLEU scores of two translations of the same sentences, and its
    "half_width".

    The latter is half the width of the 95 % interval of a paired bootstrap: both scores are of the
    same resampled sentences, so what makes a sentence hard for both does not count (Koehn 2004).
    Raise ConfigError without sacreBLEU.
    """
    measure = _metric("BLEU")
    first, second = (np.array(measure._extract_corpus_statistics(list(one), [list(references)]))
                     for one in (texts, others))  # int64 [N, statistics]
    rows = np.random.default_rng(0).integers(0, len(first), (resamples, len(first)))

    def score(statistics: np.ndarray) -> float:
        return float(measure._compute_score_from_stats(statistics.sum(0).tolist()).score)

    low, high = np.quantile([score(first[chosen]) - score(second[chosen]) for chosen in rows],
                            (0.025, 0.975))
    return {"difference": score(first) - score(second), "half_width": float(high - low) / 2}


def chrf(texts: Sequence[str], references: Sequence[str], bootstrap: int = 1) -> dict[str, Any]:
    """Return corpus chrF of `texts` in the form of `bleu`."""
    return _score("CHRF", texts, references, bootstrap)


def _score(metric: str, texts: Sequence[str], references: Sequence[str],
           bootstrap: int) -> dict[str, Any]:
    measure = _metric(metric)
    score = measure.corpus_score(list(texts), [list(references)])
    half = None
    if bootstrap > 1:
        # sacreBLEU cannot average resamples if only some of them have a match.
        with suppress(TypeError):
            half = float(measure.corpus_score(list(texts), [list(references)],
                                              n_bootstrap=bootstrap)._ci)
    return {"score": float(score.score), "signature": str(measure.get_signature()),
            "half_width": half}


def _metric(name: str) -> Any:  # noqa: ANN401 -- a metric of sacreBLEU
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ConfigError("scores of text need sacreBLEU; install it with: pip install "
                          "'superres[text]'") from error
    return getattr(metrics, name)()


@dataclass(frozen=True)
class DecodedText:
    """The translation of each source by one way to decode, and its statistics.

    `traces` has a trace of each segment, and is empty for beam search. `cut` is the number of
    translations that reached the network's largest length.
    """

    texts: list[str]
    traces: list[RowTrace]
    cut: int
    tokens: int
    seconds: float

    @property
    def seconds_per_sentence(self) -> float:
        """Wall-clock time per sentence."""
        return self.seconds / max(len(self.texts), 1)

    def statistics(self) -> dict[str, float | None]:
        """Return the decoding statistics over all sentences; block size and model calls are None
        for beam search."""
        calls = sum(trace.model_calls for trace in self.traces)
        accepted = (accepted_block_size(self.traces) if self.traces
                    else {"mean_accepted_block_size": None})
        return {**accepted,
                "model_calls_per_sentence": calls / len(self.texts) if self.traces else None,
                "tokens_per_sentence": self.tokens / len(self.texts), "cut": self.cut,
                "seconds_per_sentence": self.seconds_per_sentence}


def decode_text(
    sources: Sequence[str], translator: Translator, ways: dict[str, Way], batch_size: int
) -> dict[str, DecodedText]:
    """Translate every batch `in_turns`.

    Sentences are sorted by length into batches; batch size 1 measures the latency of single
    sentences. The index of a source keys its sampling noise, so a translation does not depend on
    the batch size.

    Raises:
        ConfigError: the checkpoint does not support a way to decode, or the batch size is not
            positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
    batches = [order[first:first + batch_size] for first in range(0, len(order), batch_size)]

    def decode(batch: list[int], way: Way) -> Translated:
        return translator.decode([sources[index] for index in batch], way, keys=batch,
                                 batch_size=batch_size)

    # in the order of the sources again
    def joined(results: list[Translated]) -> DecodedText:
        lines = [line for result in results for line in result]
        texts = {index: line.text for index, line in zip(order, lines, strict=True)}
        return DecodedText([texts[index] for index in range(len(sources))],
                           [trace for result in results for trace in result.traces],
                           sum(line.truncated for line in lines),
                           sum(line.tokens for line in lines),
                           sum(result.seconds for result in results))

    return {name: joined(results)
            for name, results in in_turns(batches, ways, decode, "translating").items()}


def text_scores(result: DecodedText, references: Sequence[str],
                bootstrap: int = 1) -> dict[str, Any]:
    """Return BLEU, chrF and the decoding statistics of one way to decode; the scores with
    intervals, see `bleu`."""
    scores = {"bleu": bleu(result.texts, references, bootstrap),
              "chrf": chrf(result.texts, references, bootstrap)}
    return {**{name: score["score"] for name, score in scores.items()},
            **{f"{name}_half_width": score["half_width"] for name, score in scores.items()},
            **result.statistics()}


def evaluate_text(
    pairs: TextPairs, translator: Translator, decode: DecodeConfig, batch_size: int = 1,
    greedy: bool = True, beam: BeamConfig | None = None,
) -> dict[str, Any]:
    """Return a report, serialisable as JSON, on blockwise decoding of the sentences with the
    settings `decode`.

    With `greedy`, block size 1 is decoded as well, for agreement and speed-up; `beam` adds beam
    search.

    Raises:
        ConfigError: `decode` does not match the checkpoint, the batch size is not positive, or
            sacreBLEU is missing.
    """
    translator.check(decode)
    decode = dataclasses.replace(decode, block_size=translator.block_size(decode))
    ways: dict[str, Way] = {"greedy": decode.sequential()} if greedy else {}
    ways |= ({} if beam is None else {f"beam {beam.size}": beam}) | {"blockwise": decode}
    signatures = {"bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}

    # scores by way, and the speed of blocks beside the others
    decoded = decode_text(pairs.source, translator, ways, batch_size)
    seconds = decoded["blockwise"].seconds_per_sentence
    report: dict[str, Any] = {
        "sentences": len(pairs), "languages": "-".join(translator.languages),
        "checkpoint": f"{translator.name}@{translator.revision}", "config": decode.to_dict(),
        "beam": None if beam is None else beam.to_dict(), "batch_size": min(batch_size, len(pairs)),
        "signatures": signatures,
        "methods": {name: text_scores(result, pairs.target) for name, result in decoded.items()},
        "speed_up": {name: result.seconds_per_sentence / max(seconds, 1e-9)
                     for name, result in decoded.items() if name != "blockwise"},
    }
    if greedy:
        report["identical_to_greedy"] = identical_share(decoded["blockwise"].texts,
                                                        decoded["greedy"].texts)
    return report


def identical_share(texts: Sequence[str], others: Sequence[str]) -> float:
    """Return the share of positions at which both lists have the same translation."""
    return sum(a == b for a, b in zip(texts, others, strict=True)) / max(len(texts), 1)


def report_lines(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_text` as text."""
    config = report["config"]
    rows = {name: {**scores, "ms": 1000 * scores["seconds_per_sentence"],
                   **({"speed_up": speed} if (speed := report["speed_up"].get(name)) else {})}
            for name, scores in report["methods"].items()}
    lines = [f"{report['sentences']} sentences, {report['languages']}, {report['checkpoint']}, "
             f"block size {config['block_size']}, {config['accept']}, batches of "
             f"{report['batch_size']}", *table_lines("", rows, COLUMNS)]
    if "identical_to_greedy" in report:
        lines.append(f"identical to greedy: {report['identical_to_greedy']:.1%} of the sentences")
    lines += [f"{name}: {signature}" for name, signature in report["signatures"].items()]
    return "\n".join(lines)

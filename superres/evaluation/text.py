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
from superres.evaluation.intervals import accepted_block_size
from superres.system.output import number_text
from superres.system.progress import track
from superres.tasks.translation import TextPairs

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator

Variant = DecodeConfig | BeamConfig


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


@dataclass
class DecodedText:
    """The translation of each source by one variant of decoding, and its statistics.

    `traces` has a trace of each segment, and is empty for beam search. `cut` is the number of
    translations that reached the network's largest length.
    """

    texts: list[str]
    traces: list[RowTrace]
    cut: int = 0
    tokens: int = 0
    seconds: float = 0.0

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
    sources: Sequence[str], translator: Translator, variants: dict[str, Variant], batch_size: int
) -> dict[str, DecodedText]:
    """Translate every batch with each variant in turn, so that other load slows all variants alike.

    Sentences are sorted by length into batches; batch size 1 measures the latency of single
    sentences. An untimed translation of the first batch warms up (compilation, caches). The index
    of a source keys its sampling noise, so a translation does not depend on the batch size.

    Raises:
        ConfigError: the checkpoint does not support a variant, or the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    results = {name: DecodedText([""] * len(sources), []) for name in variants}
    for variant in variants.values():
        translator([sources[place] for place in order[:batch_size]], variant, batch_size=batch_size)
    for first in track(range(0, len(order), batch_size), "translating", "batches"):
        batch = order[first : first + batch_size]
        for name, variant in variants.items():
            made = translator.decode([sources[place] for place in batch], variant, keys=batch,
                                     batch_size=batch_size)
            result = results[name]
            for place, line in zip(batch, made, strict=True):
                result.texts[place] = line.text
                result.cut += line.truncated
                result.tokens += line.tokens
            result.traces += made.traces
            result.seconds += made.seconds
    return results


def text_scores(result: DecodedText, references: Sequence[str], bootstrap: int = 1) -> dict[str,
                                                                                            Any]:
    """Return BLEU, chrF and the decoding statistics of one variant; the scores with intervals, see
    `bleu`."""
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
    variants: dict[str, Variant] = {"greedy": decode.sequential()} if greedy else {}
    variants |= ({} if beam is None else {f"beam {beam.size}": beam}) | {"blockwise": decode}
    signatures = {"bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}
    decoded = decode_text(pairs.source, translator, variants, batch_size)
    seconds = decoded["blockwise"].seconds_per_sentence
    report: dict[str, Any] = {
        "sentences": len(pairs), "languages": "-".join(translator.languages),
        "checkpoint": f"{translator.name}@{translator.revision}", "config": decode.to_dict(),
        "beam": None if beam is None else beam.to_dict(), "batch_size": min(batch_size, len(pairs)),
        "signatures": signatures,
        "methods": {name: text_scores(result, pairs.target) for name, result in decoded.items()},
        "speed_up": {name: result.seconds_per_sentence / max(seconds, 1e-9) for name,
                     result in decoded.items()
                     if name != "blockwise"},
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
    lines = [f"{report['sentences']} sentences, {report['languages']}, {report['checkpoint']}, "
             f"block size {config['block_size']}, {config['accept']}, batches of "
             f"{report['batch_size']}",
             f"{'':10}   BLEU   chrF  mean accepted  model calls  ms/sentence  speed-up of "
             "blockwise"]
    for name, scores in report["methods"].items():
        line = (f"{name:10}{scores['bleu']:7.2f}{scores['chrf']:7.2f}"
                f"{number_text(scores['mean_accepted_block_size'], 2):>15}"
                f"{number_text(scores['model_calls_per_sentence'], 1):>13}"
                f"{1000 * scores['seconds_per_sentence']:13.1f}")
        lines.append(line + (f"{report['speed_up'][name]:23.2f}" if name in report["speed_up"]
                             else ""))
    if "identical_to_greedy" in report:
        lines.append(f"identical to greedy: {report['identical_to_greedy']:.1%} of the sentences")
    lines += [f"{name}: {signature}" for name, signature in report["signatures"].items()]
    return "\n".join(lines)

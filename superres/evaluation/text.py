"""Scores of translations: sacreBLEU, chrF, decoding statistics and time, beside greedy decoding and beam search."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from superres.config import BeamConfig, DecodeConfig, require
from superres.errors import ConfigError
from superres.tasks.translation import TextPairs

if TYPE_CHECKING:
    from superres.decoding.trace import RowTrace
    from superres.pipeline.translator import Translator

Variant = DecodeConfig | BeamConfig


def bleu(texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus BLEU of `texts`, "score" (0..100) and "signature" of sacreBLEU (Post 2018).

    Raises:
        ConfigError: sacreBLEU is not installed.
    """
    return _score("BLEU", texts, references)


def chrf(texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus chrF of `texts`, as `bleu`."""
    return _score("CHRF", texts, references)


def _score(metric: str, texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ConfigError("scores of text need sacreBLEU; install it with: pip install 'superres[text]'") from error
    measure = getattr(metrics, metric)()
    score = measure.corpus_score(list(texts), [list(references)])
    return {"score": float(score.score), "signature": str(measure.get_signature())}


@dataclass
class DecodedText:
    """The results of one variant of decoding on the sources.

    Attributes:
        texts: a translation a source.
        traces: one a segment; none of a beam search.
        cut: translations that the model's largest length ended.
        model_calls: of all batches.
        tokens: generated tokens.
        seconds: wall clock of the timed sentences.
        timed: their number.
    """

    texts: list[str]
    traces: list[RowTrace]
    cut: int = 0
    model_calls: int = 0
    tokens: int = 0
    seconds: float = 0.0
    timed: int = 0

    @property
    def seconds_per_sentence(self) -> float:
        """Wall clock of a sentence."""
        return self.seconds / max(self.timed, 1)

    def statistics(self) -> dict[str, float | None]:
        """Return the decoding statistics over all sentences."""
        tokens = sum(trace.tokens for trace in self.traces)
        iterations = sum(trace.iterations for trace in self.traces)
        calls = sum(trace.model_calls for trace in self.traces)
        blocks = bool(self.traces)
        return {
            "mean_accepted_block_size": tokens / iterations if blocks else None,
            "model_calls_per_sentence": calls / len(self.texts) if blocks else None,
            "tokens_per_sentence": self.tokens / len(self.texts),
            "cut": self.cut,
            "seconds_per_sentence": self.seconds_per_sentence,
        }


def decode_text(
    sources: Sequence[str], translator: Translator, variants: dict[str, Variant], batch_size: int
) -> dict[str, DecodedText]:
    """Translate every batch with each variant in turn, so that a busy machine slows all variants alike.

    The first batch is translated once more beforehand and that time discarded (compilation, caches). Sampling noise is
    keyed by a source's place, so that a translation does not depend on the batch size.

    Args:
        sources: a sentence each; batches are of like length.
        translator: the checkpoint.
        variants: decoding settings by name.
        batch_size: sentences decoded together; 1 measures the latency of single sentences.

    Raises:
        ConfigError: the checkpoint does not support a variant, or the batch size is not positive.
    """
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    results = {name: DecodedText([""] * len(sources), []) for name in variants}
    for variant in variants.values():
        translator([sources[place] for place in order[:batch_size]], variant, batch_size=batch_size)
    for first in tqdm(range(0, len(order), batch_size), "translating", unit="batch", disable=None):
        batch = order[first : first + batch_size]
        for name, variant in variants.items():
            made = translator([sources[place] for place in batch], variant, keys=batch, batch_size=batch_size)
            result = results[name]
            for place, text in zip(batch, made.texts, strict=True):
                result.texts[place] = text
            result.traces += [trace for traces in made.traces for trace in traces]
            result.cut += sum(made.cut)
            result.model_calls += made.model_calls
            result.tokens += sum(made.tokens)
            result.seconds += made.seconds
            result.timed += len(batch)
    return results


def text_scores(result: DecodedText, references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU, chrF and the decoding statistics of one variant."""
    return {"bleu": bleu(result.texts, references)["score"], "chrf": chrf(result.texts, references)["score"],
            **result.statistics()}


def evaluate_text(
    pairs: TextPairs, translator: Translator, decode: DecodeConfig, batch_size: int = 1, greedy: bool = True,
    beam: BeamConfig | None = None,
) -> dict[str, Any]:
    """Score a checkpoint's blockwise decoding beside greedy decoding and beam search of the same sentences.

    Args:
        pairs: sources and references.
        translator: the checkpoint.
        decode: settings of the blockwise decoding.
        batch_size: sentences decoded together.
        greedy: whether to decode with block size 1 as well, for agreement and speed-up.
        beam: settings of the beam search; None leaves it out.

    Returns:
        The report, ready for JSON.

    Raises:
        ConfigError: `decode` does not fit the checkpoint, the batch size is not positive, or sacreBLEU is missing.
    """
    translator.check(decode)
    decode = dataclasses.replace(decode, block_size=translator.block_size(decode))
    variants: dict[str, Variant] = {}
    if greedy:
        variants["greedy"] = dataclasses.replace(decode, block_size=1, min_block=1, accept="exact")
    if beam is not None:
        variants[f"beam {beam.size}"] = beam
    variants["blockwise"] = decode
    signatures = {"bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}
    decoded = decode_text(pairs.source, translator, variants, batch_size)
    seconds = decoded["blockwise"].seconds_per_sentence
    report: dict[str, Any] = {
        "sentences": len(pairs), "languages": "-".join(translator.languages),
        "checkpoint": f"{translator.name}@{translator.revision}", "config": decode.to_dict(),
        "beam": None if beam is None else beam.to_dict(), "batch_size": min(batch_size, len(pairs)),
        "signatures": signatures,
        "methods": {name: text_scores(result, pairs.target) for name, result in decoded.items()},
        "speed_up": {name: result.seconds_per_sentence / max(seconds, 1e-9) for name, result in decoded.items()
                     if name != "blockwise"},
    }
    if greedy:
        report["identical_to_greedy"] = same_share(decoded["blockwise"].texts, decoded["greedy"].texts)
    return report


def same_share(texts: Sequence[str], others: Sequence[str]) -> float:
    """Return the share of equal translations."""
    return sum(a == b for a, b in zip(texts, others, strict=True)) / max(len(texts), 1)


def report_lines(report: dict[str, Any]) -> str:
    """Return the report of `evaluate_text` as lines for people."""
    config = report["config"]
    lines = [f"{report['sentences']} sentences, {report['languages']}, {report['checkpoint']}, block size "
             f"{config['block_size']}, {config['accept']}, batches of {report['batch_size']}",
             f"{'':10}   BLEU   chrF  mean accepted  model calls  ms/sentence  speed-up of blockwise"]
    for name, scores in report["methods"].items():
        size, calls = scores["mean_accepted_block_size"], scores["model_calls_per_sentence"]
        cells = [f"{scores['bleu']:7.2f}{scores['chrf']:7.2f}", "-".rjust(15) if size is None else f"{size:15.2f}",
                 "-".rjust(13) if calls is None else f"{calls:13.1f}", f"{1000 * scores['seconds_per_sentence']:13.1f}"]
        if name in report["speed_up"]:
            cells.append(f"{report['speed_up'][name]:23.2f}")
        lines.append(f"{name:10}{''.join(cells)}")
    if "identical_to_greedy" in report:
        lines.append(f"identical to greedy: {report['identical_to_greedy']:.1%} of the sentences")
    lines += [f"{name}: {signature}" for name, signature in report["signatures"].items()]
    return "\n".join(lines)

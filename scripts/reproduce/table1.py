"""Reproduce Tables 1 and 4 of Stern et al. (2018): quality of translation and block sizes, and
speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ladder import (
    ACCEPTED,
    BLOCK_SIZES,
    EXACT,
    Cell,
    Claim,
    Series,
    cells_of,
    common_views,
    curve_rows,
    curves_plot,
    measured,
    series_row,
    training_row,
)
from measurements import Columns, Document, Line, Panel, Row, Values, draw
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import survival_curve
from superres.evaluation.drawing import Way
from superres.evaluation.text import (
    bleu,
    bleu_difference,
    chrf,
    decode_text,
    identical_share,
    text_scores,
)
from superres.pipeline.translator import Translator
from superres.system.output import markdown_table, short_digest
from superres.tasks.translation import TextPairs


def _paper(figures: dict[int, tuple[float, float]]) -> dict[int, dict[str, float]]:
    return {k: {"bleu": score, ACCEPTED: size} for k, (score, size) in figures.items()}


SERIES: dict[str, Series] = {
    "regular": Series("dense heads on the frozen base", "regular", EXACT, _paper({
        1: (26.00, 1.00), 2: (25.81, 1.51), 4: (25.84, 1.73), 6: (26.08, 1.76), 8: (25.82, 1.76),
        10: (25.69, 1.74)})),
    "distillation": Series("the same, on distilled text", "distillation", EXACT, _paper({
        1: (26.41, 1.00), 2: (26.52, 1.55), 4: (26.31, 1.85), 6: (26.26, 1.90), 8: (26.25, 1.91),
        10: (26.34, 1.90)})),
    "fine-tuning": Series("dense heads with the base", "fine-tuning", EXACT, _paper({
        2: (25.74, 1.78), 4: (25.05, 2.69), 6: (24.69, 2.98), 8: (24.27, 3.01),
        10: (23.51, 2.87)})),
    "both": Series("the same, on distilled text", "both", EXACT, _paper({
        2: (26.58, 1.88), 4: (26.36, 3.27), 6: (26.18, 4.18), 8: (26.11, 4.69),
        10: (25.60, 4.95)})),
    "both, top-2": Series("", "both", DecodeConfig(accept="top-k", top_k=2), _paper({
        2: (26.49, 1.92), 4: (26.22, 3.47), 6: (25.90, 4.59), 8: (25.71, 5.34), 10: (25.04, 5.67)}),
                          BLOCK_SIZES[1:]),
    "both, top-3": Series("", "both", DecodeConfig(accept="top-k", top_k=3), _paper({
        2: (26.41, 1.93), 4: (26.14, 3.52), 6: (25.56, 4.69), 8: (25.41, 5.52), 10: (24.68, 5.91)}),
                          BLOCK_SIZES[1:]),
    "both, minimum block 2": Series("", "both", DecodeConfig(min_block=2, block_size=2), {},
                                    BLOCK_SIZES[1:]),
    "both, minimum block 3": Series("", "both", DecodeConfig(min_block=3, block_size=3), {},
                                    BLOCK_SIZES[2:]),
    **{f"{role}, recurrent heads": Series("", f"recurrent-{role}")
       for role in ("regular", "distillation", "fine-tuning", "both")},
}
"""The paper's four columns with its heads, its top-k rows and minimum blocks (for which it has no
figures); and the four columns with recurrent heads.

The paper's figures are BLEU and mean accepted block size by k (newstest2013, a network per k)."""

PAPER_SPEED = {k: {"bleu": score, "speed_up": speed_up} for k, score, speed_up in (
    (1, 29.11, 1.00), (2, 28.95, 1.72), (4, 28.54, 2.69), (6, 28.11, 3.10), (8, 27.88, 3.31),
    (10, 27.40, 3.04))}
"""The rows of the paper's Table 4 that are its own: BLEU on newstest2014 and wall-clock speed-up by
k."""

CLAIMS = (
    Claim("distilled text raises BLEU of greedy decoding", "distillation", "regular", 1,
          score="bleu"),
    Claim("on a frozen base, distilled text raises the block size", "distillation", "regular", 8),
    Claim("fine-tuning accepts more than a frozen base", "fine-tuning", "regular", 8),
    Claim("fine-tuning gains more than distilled text", "fine-tuning", "distillation", 8),
    Claim("both accept more than fine-tuning", "both", "fine-tuning", 8),
    Claim("fine-tuning costs BLEU", "regular", "fine-tuning", 8, score="bleu"),
    Claim("both cost less BLEU than fine-tuning", "both", "fine-tuning", 8, score="bleu"),
    Claim("top-2 acceptance accepts more than exact acceptance", "both, top-2", "both", 8),
    Claim("top-2 acceptance costs BLEU", "both", "both, top-2", 8, score="bleu"),
)
"""What section 7.1 of the paper concludes from its table."""

TEST = "test, "
"""Prefix of the names of series on the test set, before the role of the network."""
CHECKPOINTS = tuple(dict.fromkeys(series.checkpoint for series in SERIES.values()))
"""Roles of the networks."""
TRAINED_ON = {role: "distilled text" if role.endswith(("distillation", "both")) else "true text"
              for role in CHECKPOINTS}
"""Kind of training text of each network; the bases of both kinds differ in nothing else."""
COLOURS = {role: f"C{number}" for number, role in enumerate(CHECKPOINTS)}
CURVE_SENTENCES = 256
"""Number of sentences that every snapshot translates, the first."""
RESAMPLES = 1000
"""Resamples of the sentences for the intervals of BLEU and chrF, sacreBLEU's default."""
BEAM = BeamConfig()


def conditions(dev: TextPairs, test: TextPairs | None, batch_size: int, device: str) -> Values:
    """Return what all rows have in common."""
    digests = [None if pairs is None
               else short_digest("\n".join([*pairs.source, *pairs.target]).encode())
               for pairs in (dev, test)]
    return {"dev": digests[0], "dev_sentences": len(dev), "batch_size": batch_size,
            "device": device, "test": digests[1],
            "test_sentences": 0 if test is None else len(test),
            "bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}


def rows(
    dev: TextPairs, test: TextPairs | None, translators: Mapping[str, Translator], ladder: Path,
    batch_size: int,
) -> Iterator[Row]:
    """Return the rows of the networks given: series on `dev`, single sentences of `test`, curves
    and differences."""
    greedy = DecodeConfig(block_size=1)
    for name, series in SERIES.items():
        if (translator := translators.get(series.checkpoint)) is not None:
            # Every series includes greedy decoding, the reference for agreement and speed-up.
            ways = {1: greedy, **series.ways(translator.model_config.prediction_heads)}
            yield series_row(name, translator, ways,
                             lambda one=translator, ways=ways: cells(
                                 dev, one, ways, batch_size))
    for role, translator in translators.items() if test is not None else ():
        heads = translator.model_config.prediction_heads
        single: dict[int, Way] = {k: DecodeConfig(block_size=k) for k in BLOCK_SIZES
                                      if k <= heads} | {0: BEAM}
        yield series_row(TEST + role, translator, single,
                         lambda one=translator, single=single: cells(
                             test, one, single, 1))

    def widest(folder: Path) -> Cell:
        translator = Translator.load(folder, next(iter(translators.values())).device)
        options = {"exact": DecodeConfig(block_size=translator.model_config.prediction_heads)}
        decoded = decode_text(dev.source[:CURVE_SENTENCES], translator, options, batch_size)
        return {"exact": decoded["exact"].statistics()[ACCEPTED]}

    yield from curve_rows(ladder, list(translators), widest)
    yield from difference_rows(dev, translators, batch_size)
    yield training_row(ladder)


def difference_rows(dev: TextPairs, translators: Mapping[str, Translator],
                    batch_size: int) -> Iterator[Row]:
    """Return a row per claim about BLEU: the difference on the same sentences, by a paired
    bootstrap."""
    for claim in CLAIMS:
        used = [(translators[SERIES[name].checkpoint], SERIES[name]) for name in (claim.better,
                                                                                  claim.other)
                if SERIES[name].checkpoint in translators]
        if claim.score != "bleu" or len(used) < 2 or claim.block_size > min(
                one.model_config.prediction_heads for one, _ in used):
            continue

        def difference(claim: Claim = claim, used: list[Any] = used) -> Values:
            better, other = (translator(list(dev.source),
                                        series.ways(claim.block_size)[claim.block_size],
                                        batch_size=batch_size).texts for translator, series in used)
            return bleu_difference(better, other, dev.target, RESAMPLES)

        yield Row(f"difference {claim.text}", difference,
                  {"weights": [one.revision for one, _ in used]})


def cells(
    pairs: TextPairs, translator: Translator, ways: Mapping[int, Way], batch_size: int,
) -> list[Cell]:
    """Translate with ways by k (0 is beam search), and return a cell per way."""
    decoded = decode_text(pairs.source, translator,
                          {str(k): way for k, way in ways.items()}, batch_size)
    greedy = decoded["1"]
    return [{
        "block_size": k, **text_scores(result, pairs.target, RESAMPLES),
        "speed_up": greedy.seconds_per_sentence / max(result.seconds_per_sentence, 1e-9),
        "identical_to_greedy": identical_share(result.texts, greedy.texts),
        "survival": survival_curve(result.traces, k) if result.traces else None,
    } for k, result in zip(ways, decoded.values(), strict=True)]


SCORES: Columns = {
    "BLEU": ("bleu", 2), "chrF": ("chrf", 2), "mean accepted block size": (ACCEPTED, 2),
    "model calls": ("model_calls_per_sentence", 2), "tokens": ("tokens_per_sentence", 1),
    "ms per sentence": (lambda row: 1000 * row["seconds_per_sentence"], 2),
    "speed-up": ("speed_up", 2), "identical to greedy": ("identical_to_greedy", 4),
}


def views(document: Document) -> dict[str, str]:
    """Return Table 1 with the paper's figures below ours, the conclusions, Table 4, all scores, and
    the training."""
    def line(title: str, found: Mapping[int, Cell], keys: tuple[str, str],
             sizes: tuple[int, ...]) -> list[str]:
        return [title,
                *(f"{found[k][keys[0]]:.2f} / {found[k][keys[1]]:.2f}" if k in found and k in sizes
                  else "-"
                  for k in BLOCK_SIZES)]

    table, speed = list[list[str]](), list[list[str]]()
    for name, series in measured(SERIES, document).items():
        title = f"{name}: {series.title}" if series.title else name
        table.append(line(title, cells_of(document, name), ("bleu", ACCEPTED), series.block_sizes))
        if series.paper:
            table.append(line("paper", series.paper, ("bleu", ACCEPTED), series.block_sizes))
    for role in CHECKPOINTS:
        if found := cells_of(document, TEST + role):
            beam = found[0]
            speed.append([*line(role, found, ("bleu", "speed_up"), BLOCK_SIZES),
                          f"{beam['bleu']:.2f} / {beam['speed_up']:.2f}"])
    speed.append([*line("both, paper (newstest2014)", PAPER_SPEED, ("bleu", "speed_up"),
                        BLOCK_SIZES), "-"])
    sizes = [str(k) for k in BLOCK_SIZES]
    return {"accepted": markdown_table(["k", *sizes], table),
            **common_views(CLAIMS, SERIES, document, SCORES),
            "speed": markdown_table(["k", *sizes, "beam 4"], speed)}


def plots(document: Document) -> dict[str, bytes]:
    """Return the paper's Figure 4, the speed-up of single test sentences, and the curves of
    training.

    The paper's points have the block sizes of its Table 1 (newstest2013) and the speed-ups of its
    Table 4.
    """
    found = {role: cells_of(document, TEST + role) for role in CHECKPOINTS}
    theirs = {k: {**one, **PAPER_SPEED[k]} for k, one in SERIES["both"].paper.items()}
    # 0 is beam search
    lines = [Line([(cell[ACCEPTED], cell["speed_up"]) for k, cell in own.items() if k],
                  name, COLOURS.get(name, "black"), notes=[str(k) for k in own if k])
             for name, own in {"both, paper": theirs, **found}.items()]
    labels = {"xlabel": "mean accepted block size (k beside each point)", "ylabel": "speed-up over "
              "greedy decoding"}
    return {"table1-figure4.png": draw([Panel(lines, labels)], 1, (7, 5.5)),
            "table1-curves.png": curves_plot(document, {"exact": "exact, all heads"}, COLOURS)}

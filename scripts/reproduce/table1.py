"""Reproduce Tables 1 and 4 of Stern et al. (2018): quality of translation and block sizes, and speed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ladder import claims_parts, conditions, costs_parts, draw_curves, snapshots
from series import ACCEPTED, BLOCK_SIZES, EXACT, Cell, Claim, Series, Table, with_half
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import survival_curve
from superres.evaluation.text import Variant, bleu, bleu_difference, chrf, decode_text, identical_share, text_scores
from superres.pipeline.translator import Translator
from superres.system.output import figure_png, markdown_table, number_text, short_digest
from superres.tasks.translation import TextPairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

def _paper(figures: dict[int, tuple[float, float]]) -> dict[int, dict[str, float]]:
    return {k: {"bleu": score, ACCEPTED: size} for k, (score, size) in figures.items()}


SERIES: dict[str, Series] = {
    "regular": Series("regular", EXACT, _paper({
        1: (26.00, 1.00), 2: (25.81, 1.51), 4: (25.84, 1.73), 6: (26.08, 1.76), 8: (25.82, 1.76), 10: (25.69, 1.74)})),
    "distillation": Series("distillation", EXACT, _paper({
        1: (26.41, 1.00), 2: (26.52, 1.55), 4: (26.31, 1.85), 6: (26.26, 1.90), 8: (26.25, 1.91), 10: (26.34, 1.90)})),
    "fine-tuning": Series("fine-tuning", EXACT, _paper({
        2: (25.74, 1.78), 4: (25.05, 2.69), 6: (24.69, 2.98), 8: (24.27, 3.01), 10: (23.51, 2.87)})),
    "both": Series("both", EXACT, _paper({
        2: (26.58, 1.88), 4: (26.36, 3.27), 6: (26.18, 4.18), 8: (26.11, 4.69), 10: (25.60, 4.95)})),
    "both, top-2": Series("both", DecodeConfig(accept="top-k", top_k=2), _paper({
        2: (26.49, 1.92), 4: (26.22, 3.47), 6: (25.90, 4.59), 8: (25.71, 5.34), 10: (25.04, 5.67)}), BLOCK_SIZES[1:]),
    "both, top-3": Series("both", DecodeConfig(accept="top-k", top_k=3), _paper({
        2: (26.41, 1.93), 4: (26.14, 3.52), 6: (25.56, 4.69), 8: (25.41, 5.52), 10: (24.68, 5.91)}), BLOCK_SIZES[1:]),
    "both, minimum block 2": Series("both", DecodeConfig(min_block=2, block_size=2), {}, BLOCK_SIZES[1:]),
    "both, minimum block 3": Series("both", DecodeConfig(min_block=3, block_size=3), {}, BLOCK_SIZES[2:]),
    **{f"{role}, recurrent heads": Series(f"recurrent-{role}")
       for role in ("regular", "distillation", "fine-tuning", "both")},
}
"""The paper's four columns with its heads, its top-k rows and minimum blocks (for which it has no figures); and the
four columns with recurrent heads.

The paper's figures are BLEU and mean accepted block size by k (newstest2013, a network per k)."""

CLAIMS = (
    Claim("distilled text raises BLEU of greedy decoding", "distillation", "regular", 1, score="bleu"),
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

TABLE_4: tuple[tuple[str, str, float, float | None], ...] = (
    ("Transformer (beam size 4)", "Vaswani et al. (2017)", 28.4, None),
    ("Transformer (beam size 1)", "Gu et al. (2018)", 22.71, None),
    ("Transformer (beam size 4)", "Gu et al. (2018)", 23.45, None),
    ("Non-autoregressive Transformer", "Gu et al. (2018)", 17.35, None),
    ("Non-autoregressive Transformer (+FT)", "Gu et al. (2018)", 17.69, None),
    ("Non-autoregressive Transformer (+FT + NPD s = 10)", "Gu et al. (2018)", 18.66, None),
    ("Non-autoregressive Transformer (+FT + NPD s = 100)", "Gu et al. (2018)", 19.17, None),
    ("Transformer (beam size 1)", "Lee et al. (2018)", 23.77, 1.20),
    ("Transformer (beam size 4)", "Lee et al. (2018)", 24.57, 1.00),
    ("Iterative refinement Transformer (idec = 1)", "Lee et al. (2018)", 13.91, 11.39),
    ("Iterative refinement Transformer (idec = 2)", "Lee et al. (2018)", 16.95, 8.77),
    ("Iterative refinement Transformer (idec = 5)", "Lee et al. (2018)", 20.26, 3.11),
    ("Iterative refinement Transformer (idec = 10)", "Lee et al. (2018)", 21.61, 2.01),
    ("Iterative refinement Transformer (Adaptive)", "Lee et al. (2018)", 21.54, 2.39),
    ("Latent Transformer without rescoring", "Kaiser et al. (2018)", 19.8, None),
    ("Latent Transformer rescoring top-10", "Kaiser et al. (2018)", 21.0, None),
    ("Latent Transformer rescoring top-100", "Kaiser et al. (2018)", 22.5, None),
    ("Transformer with distillation (greedy, k = 1)", "Stern et al. (2018)", 29.11, 1.00),
    ("Blockwise parallel decoding for Transformer (k = 2)", "Stern et al. (2018)", 28.95, 1.72),
    ("Blockwise parallel decoding for Transformer (k = 4)", "Stern et al. (2018)", 28.54, 2.69),
    ("Blockwise parallel decoding for Transformer (k = 6)", "Stern et al. (2018)", 28.11, 3.10),
    ("Blockwise parallel decoding for Transformer (k = 8)", "Stern et al. (2018)", 27.88, 3.31),
    ("Blockwise parallel decoding for Transformer (k = 10)", "Stern et al. (2018)", 27.40, 3.04),
)
"""The paper's Table 4: model, source, BLEU on newstest2014, and wall-clock speed-up or None."""


class Table1(Table):
    """Measurements of translation, for Table 1 and, with a test text, Table 4."""

    name = "table1"

    def __init__(self, folder: Path, dev: TextPairs, test: TextPairs | None, batch_size: int, device: str) -> None:
        """See `Table`. The sentences of `dev` are decoded in batches, those of `test` one by one."""
        self.dev, self.test, self.batch_size, self.device = dev, test, batch_size, device
        digests = [None if pairs is None else short_digest("\n".join([*pairs.source, *pairs.target]).encode())
                   for pairs in (dev, test)]
        run = {"dev": digests[0], "dev_sentences": len(dev), "batch_size": batch_size, "device": device,
               "test": digests[1], "test_sentences": 0 if test is None else len(test),
               "bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}
        super().__init__(folder, run, [*SERIES, *(TEST + role for role in CHECKPOINTS)], torch.device(device))

    def add(self, name: str, translator: Translator) -> None:
        """Measure the series `name` with its network; see `Table.measure`."""
        # Every series includes greedy decoding, the reference for agreement and speed-up.
        variants = {1: DecodeConfig(block_size=1), **SERIES[name].variants(translator.model_config.prediction_heads)}
        self.measure(name, translator, variants, lambda: _cells(self.dev, translator, variants, self.batch_size))

    def add_test(self, role: str, translator: Translator) -> None:
        """Measure the network `role` on the test set, one sentence at a time: greedy, every k, and beam search (0)."""
        if self.test is None:
            return
        test, heads = self.test, translator.model_config.prediction_heads
        variants: dict[int, Variant] = {k: DecodeConfig(block_size=k) for k in BLOCK_SIZES if k <= heads} | {0: BEAM}
        self.measure(TEST + role, translator, variants, lambda: _cells(test, translator, variants, 1))

    def add_curve(self, role: str, ladder: Path) -> None:
        """Measure what the snapshots of the network `role` accept at its largest block size; see `Table`."""
        sources = self.dev.source[:CURVE_SENTENCES]

        def scores(folder: Path) -> Cell:
            translator = Translator.load(folder, self.device)
            widest = {"exact": DecodeConfig(block_size=translator.model_config.prediction_heads)}
            decoded = decode_text(sources, translator, widest, self.batch_size)
            return {"exact": decoded["exact"].statistics()[ACCEPTED]}

        self.measure_curve(role, snapshots(ladder, role), scores)

    def add_differences(self, pipelines: Mapping[str, Translator]) -> None:
        """Measure the differences in BLEU of the claims by a paired bootstrap of the sentences."""
        texts: dict[tuple[str, int], list[str]] = {}
        for claim in CLAIMS:
            needed = {SERIES[name].checkpoint for name in (claim.better, claim.other)}
            if claim.score != "bleu" or needed - {*pipelines}:
                continue
            for name in (claim.better, claim.other):
                place = name, claim.block_size
                if place not in texts:
                    translator = pipelines[SERIES[name].checkpoint]
                    options = SERIES[name].variants(translator.model_config.prediction_heads).get(claim.block_size)
                    texts[place] = [] if options is None else translator(
                        list(self.dev.source), options, batch_size=self.batch_size).texts
            better, other = (texts[name, claim.block_size] for name in (claim.better, claim.other))
            if better and other:
                self.document["differences"][claim.text] = bleu_difference(better, other, self.dev.target, RESAMPLES)
        self.save()

    def views(self) -> dict[str, str | bytes]:
        """See `Table.views`."""
        series = self.document["series"]
        return {"table1.md": table1_markdown(self.document), "table4.md": table4_markdown(self.document),
                "table1.png": _scatter(series), "figure4.png": _wall_clock(series),
                "curves.png": _curves(self.document["curves"])}


def _cells(
    pairs: TextPairs, translator: Translator, variants: Mapping[int, Variant], batch_size: int,
) -> list[dict[str, Any]]:
    """Translate with variants by k (0 is beam search), and return a cell per variant."""
    decoded = decode_text(pairs.source, translator, {str(k): variant for k, variant in variants.items()}, batch_size)
    greedy = decoded["1"]
    return [{
        "block_size": k, "config": variants[k].to_dict(), **text_scores(result, pairs.target, RESAMPLES),
        "speed_up": greedy.seconds_per_sentence / max(result.seconds_per_sentence, 1e-9),
        "identical_to_greedy": identical_share(result.texts, greedy.texts),
        "survival": survival_curve(result.traces, k) if result.traces else None,
    } for k, result in zip(variants, decoded.values(), strict=True)]


def _figures(cell: Cell) -> str:
    """Return BLEU and mean accepted block size as text."""
    return f"{cell['bleu']:.2f} / {cell[ACCEPTED]:.2f}" if cell else "-"


COLUMNS = {
    "BLEU": ("bleu", 2), "chrF": ("chrf", 2), "mean accepted block size": ("mean_accepted_block_size", 2),
    "model calls": ("model_calls_per_sentence", 2), "tokens": ("tokens_per_sentence", 1),
    "ms/sentence": ("seconds_per_sentence", 2), "speed-up": ("speed_up", 2),
    "identical to greedy": ("identical_to_greedy", 4),
}
"""Entry of a cell and number of decimals, by heading of the detailed table."""


def table1_markdown(document: dict[str, Any]) -> str:
    """Return Table 1 as Markdown, with the paper's figures below ours, and a table of all scores."""
    run = document["run"]
    entries = {name: document["series"][name] for name in SERIES if name in document["series"]}
    rows, details = [], []
    for name, entry in entries.items():
        series, title = SERIES[name], name.capitalize()
        cells = {cell["block_size"]: cell for cell in entry["cells"]}
        shown = {k: cells.get(k) if k in series.block_sizes else None for k in BLOCK_SIZES}
        rows.append([f"**{title}**", *(_figures(cell or {}) for cell in shown.values())])
        if series.paper:
            rows.append([f"{title}, paper", *(_figures(series.paper.get(k, {})) for k in BLOCK_SIZES)])
        for k, cell in shown.items():
            if cell is not None:
                scaled = {**cell, "seconds_per_sentence": 1000 * cell["seconds_per_sentence"]}
                figures = (with_half(scaled, key, digits) for key, digits in COLUMNS.values())
                details.append([title, str(k), *figures])
    networks = {SERIES[name].checkpoint: f"{entry['checkpoint']}@{entry['revision']}"
                for name, entry in entries.items()}
    missing = [role for role in CHECKPOINTS if role not in networks]
    parts = [
        "# Table 1: BLEU / mean accepted block size",
        f"{run['dev_sentences']} sentences (data {run['dev']}), batches of {run['batch_size']}, {run['device']}. "
        f"Networks: {', '.join(f'{role} {network}' for role, network in networks.items())}. {conditions(document)} "
        f"{run['bleu']}.",
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        markdown_table(["k", *map(str, BLOCK_SIZES)], rows),
        f"The paper's figures: {document['paper']}, Table 1 and section 7.1; newstest2013, trained on WMT 2014 "
        "English-German, one network per k. Our figures are on other data; one network serves all k with its first k "
        "heads. The base of Regular and Fine-tuning was trained on true text; that of Distillation and Both for as "
        "many steps, from the same random weights, on the translations of a teacher with another seed. Regular and "
        "Distillation freeze their base. The paper's heads are one dense layer, which learns the true words; recurrent "
        "heads learn the distributions of p1. The networks differ in nothing else.",
        *claims_parts(CLAIMS, SERIES, entries, document["differences"]), *costs_parts(document),
        "## Quality and cost", markdown_table(["series", "k", *COLUMNS], details),
        f"Speed-up and agreement are relative to greedy decoding of the same network in the same run. After +- is half "
        f"the width of a 95 % interval over sentences, of BLEU and chrF by bootstrap. {run['chrf']}.",
    ]
    return "\n\n".join(parts) + "\n"


def table4_markdown(document: dict[str, Any]) -> str:
    """Return Table 4 as Markdown: the rows of our networks on the test set, and then the paper's rows."""
    run = document["run"]
    entries = {role: document["series"][TEST + role] for role in CHECKPOINTS if TEST + role in document["series"]}
    rows = []
    for role, entry in entries.items():
        for cell in entry["cells"]:
            k = cell["block_size"]
            variant = f"beam size {BEAM.size}" if k == 0 else "greedy, k = 1" if k == 1 else f"blockwise, k = {k}"
            rows.append([f"{role} ({variant})", "ours", number_text(cell["bleu"], 2), f"{cell['speed_up']:.2f}x",
                         number_text(cell["mean_accepted_block_size"], 2)])
    for model, source, score, speed_up in TABLE_4:
        rows.append([model, source, f"{score}", "" if speed_up is None else f"{speed_up:.2f}x", ""])
    ours = f"{run['test_sentences']} sentences (data {run['test']}), {run['device']}" if entries else "not measured"
    parts = [
        "# Table 4: BLEU on the test set, and wall-clock speed-up of single-sentence decoding",
        f"Our figures: {ours}, one sentence at a time; the speed-up is relative to cached greedy decoding of the same "
        f"network in the same run. The paper's figures: newstest2014. The test sets differ, so their BLEU scores are "
        f"not comparable. {run['bleu']}.",
        markdown_table(["model", "source", "BLEU", "speed-up", "mean accepted block size"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _scatter(series: dict[str, Any]) -> bytes:
    """Plot BLEU against mean accepted block size as in the paper: our figures on the left, the paper's on the right."""
    from matplotlib import colormaps  # an optional dependency, slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    ours, paper = figure.subplots(1, 2, sharey=True)
    for number, (name, column) in enumerate(SERIES.items()):
        cells = [cell for cell in series.get(name, {"cells": []})["cells"] if cell["block_size"] in column.block_sizes]
        measured = {cell["block_size"]: cell for cell in cells}
        for axes, figures in ((ours, measured), (paper, column.paper)):
            points = {k: (one["bleu"], one[ACCEPTED]) for k, one in figures.items()}
            _draw_curve(axes, name, points, colormaps["tab20"](number))
    for axes, title in ((ours, "ours"), (paper, "paper, newstest2013")):
        axes.set(xlabel="BLEU", title=title)
        axes.grid(alpha=0.3)
    lines = {line.get_label(): line for axes in (paper, ours) for line in axes.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="small")
    ours.set_ylabel("mean accepted block size (k beside each point)")
    return figure_png(figure)


def _draw_curve(axes: Axes, name: str, points: dict[int, tuple[float, float]], color: Any = None) -> None:  # noqa: ANN401 -- Matplotlib's
    """Draw a line through the points of a series, with k beside each; nothing without points."""
    if points:
        axes.plot(*zip(*points.values(), strict=True), marker="o", linewidth=1, color=color, label=name.capitalize())
        for k, point in points.items():
            axes.annotate(str(k), point, (4, 3), textcoords="offset points", fontsize=7)


def _wall_clock(series: dict[str, Any]) -> bytes:
    """Plot the speed-up of single test sentences by mean accepted block size, as in Figure 4 of the paper.

    The paper's points have the block sizes of its Table 1 (newstest2013) and speed-ups of its Table 4 (newstest2014).
    """
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    speeds = [speed for model, _, _, speed in TABLE_4 if model.startswith("Blockwise") and speed is not None]
    both = SERIES["both"].paper.items()
    curves = {"both, paper": {k: (one[ACCEPTED], speed) for (k, one), speed in zip(both, speeds, strict=True)}}
    for role in CHECKPOINTS:
        cells = series.get(TEST + role, {"cells": []})["cells"]
        curves[role] = {cell["block_size"]: (cell["mean_accepted_block_size"], cell["speed_up"])
                        for cell in cells if cell["block_size"]}  # 0 is beam search
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        _draw_curve(axes, name, points)
    axes.set(xlabel="mean accepted block size (k beside each point)", ylabel="speed-up over greedy decoding")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure_png(figure)


def _curves(curves: dict[str, Any]) -> bytes:
    """Plot what each network accepts, exactly and at its largest block size, against the steps of its training."""
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, curves, "exact", COLOURS)
    if axes.lines:
        axes.legend(fontsize="small")
    return figure_png(figure)

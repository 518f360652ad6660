"""Tables 1 and 4 of Stern et al. (2018), measured again: quality of translation, acceptance by block size, speed."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superres.config import BeamConfig, DecodeConfig, require
from superres.decoding.trace import survival_curve
from superres.evaluation.table2 import EXACT, Table
from superres.evaluation.text import DecodedText, Variant, bleu, chrf, decode_text, same_share, text_scores
from superres.system.output import figure_png, markdown_table, number_text, write_results
from superres.system.progress import say
from superres.tasks.translation import TextPairs

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator

BLOCK_SIZES = (1, 2, 4, 6, 8, 10)
"""Block sizes k of the paper's table."""

Figures = tuple[float, float]
"""BLEU and mean accepted block size, or BLEU and speed-up."""


@dataclass(frozen=True)
class TextSeries:
    """Measurements of one network at growing block sizes: a column of the paper's table, or a row beside it.

    Attributes:
        checkpoint: role of the network, an option of the script.
        decode: the criterion; the block size is filled in.
        paper: the paper's BLEU and mean accepted block size by k (newstest2013, a network for each k).
        block_sizes: k; those above the network's prediction heads are left out.
        title: what the table calls it.
    """

    checkpoint: str
    title: str
    decode: DecodeConfig = EXACT
    paper: dict[int, Figures] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = BLOCK_SIZES

    def variants(self, prediction_heads: int) -> dict[int, DecodeConfig]:
        """Return the settings by block size k."""
        return {k: dataclasses.replace(self.decode, block_size=k) for k in self.block_sizes if k <= prediction_heads}


def _top(count: int) -> DecodeConfig:
    return DecodeConfig(accept="top-k", top_k=count)


SERIES: dict[str, TextSeries] = {
    "regular": TextSeries("regular", "Regular", paper={
        1: (26.00, 1.00), 2: (25.81, 1.51), 4: (25.84, 1.73), 6: (26.08, 1.76), 8: (25.82, 1.76), 10: (25.69, 1.74)}),
    "distillation": TextSeries("distillation", "Distillation", paper={
        1: (26.41, 1.00), 2: (26.52, 1.55), 4: (26.31, 1.85), 6: (26.26, 1.90), 8: (26.25, 1.91), 10: (26.34, 1.90)}),
    "fine-tuning": TextSeries("fine-tuning", "Fine Tuning", paper={
        2: (25.74, 1.78), 4: (25.05, 2.69), 6: (24.69, 2.98), 8: (24.27, 3.01), 10: (23.51, 2.87)}),
    "both": TextSeries("both", "Both", paper={
        2: (26.58, 1.88), 4: (26.36, 3.27), 6: (26.18, 4.18), 8: (26.11, 4.69), 10: (25.60, 4.95)}),
    "both, top-2": TextSeries("both", "Both, top-2", _top(2), {
        2: (26.49, 1.92), 4: (26.22, 3.47), 6: (25.90, 4.59), 8: (25.71, 5.34), 10: (25.04, 5.67)}, BLOCK_SIZES[1:]),
    "both, top-3": TextSeries("both", "Both, top-3", _top(3), {
        2: (26.41, 1.93), 4: (26.14, 3.52), 6: (25.56, 4.69), 8: (25.41, 5.52), 10: (24.68, 5.91)}, BLOCK_SIZES[1:]),
    "both, minimum block 2": TextSeries("both", "Both, minimum block 2", DecodeConfig(min_block=2, block_size=2),
                                        block_sizes=BLOCK_SIZES[1:]),
    "both, minimum block 3": TextSeries("both", "Both, minimum block 3", DecodeConfig(min_block=3, block_size=3),
                                        block_sizes=BLOCK_SIZES[2:]),
}
"""The paper's four columns, its top-k rows, and the minimum block, of which it gives no figures."""

TEST = "test, "
"""Beginning of the names of series on the test set, which goes on with the role of the network."""

CHECKPOINTS = tuple(dict.fromkeys(series.checkpoint for series in SERIES.values()))
"""Roles of the networks."""

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
"""The paper's Table 4: model, source, BLEU on newstest2014, wall-clock speed-up where it gives one."""


def text_digest(pairs: TextPairs | None) -> str | None:
    """Return the first 12 hexadecimal digits of the SHA-256 of the text; None for none."""
    if pairs is None:
        return None
    return hashlib.sha256("\n".join([*pairs.source, *pairs.target]).encode()).hexdigest()[:12]


class Table1(Table):
    """Measurements of translation: `table1.json`, from which the Markdown tables and the scatter plot are drawn."""

    name = "table1"

    def __init__(self, folder: Path, dev: TextPairs, test: TextPairs | None, batch_size: int, device: str) -> None:
        """Open the folder, or start a new one.

        Args:
            folder: where the results are and go.
            dev: development text, for Table 1.
            test: test text, for Table 4; None leaves that out.
            batch_size: sentences of `dev` decoded together; those of `test` are decoded one by one.
            device: name of where the networks run.

        Raises:
            ConfigError: the folder holds measurements of other data, on another device or with another batch size, or
                a table1.json that cannot be read; or the batch size is not positive.
            OutputError: the folder cannot be written.
        """
        require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
        self.dev, self.test, self.batch_size = dev, test, batch_size
        run = {"dev": text_digest(dev), "dev_sentences": len(dev), "batch_size": batch_size, "device": device,
               "test": text_digest(test), "test_sentences": 0 if test is None else len(test),
               "bleu": bleu(["a"], ["a"])["signature"], "chrf": chrf(["a"], ["a"])["signature"]}
        super().__init__(folder, run, [*SERIES, *(TEST + role for role in CHECKPOINTS)])

    def add(self, name: str, translator: Translator) -> None:
        """Measure the series `name` with its network, unless that is done, and write what is known so far.

        Raises:
            OutputError: the file cannot be written.
        """
        variants = SERIES[name].variants(translator.model_config.prediction_heads)
        # Greedy decoding comes along for agreement, whether it is a cell or not.
        all_ways = {1: DecodeConfig(block_size=1), **variants}
        cells = self._measure(name, self.dev, translator, dict(all_ways), self.batch_size)
        if cells is not None:
            self.keep(name, translator.name, translator.revision, cells)

    def add_test(self, role: str, translator: Translator) -> None:
        """Measure the network `role` on the test set, one sentence at a time: greedy, every k, and beam search.

        Raises:
            OutputError: the file cannot be written.
        """
        if self.test is None:
            return
        heads = translator.model_config.prediction_heads
        variants: dict[int, Variant] = {k: DecodeConfig(block_size=k) for k in BLOCK_SIZES if k <= heads}
        cells = self._measure(TEST + role, self.test, translator, {**variants, 0: BEAM}, 1)
        if cells is not None:
            self.keep(TEST + role, translator.name, translator.revision, cells)

    def _measure(
        self, name: str, pairs: TextPairs, translator: Translator, variants: dict[int, Variant], batch_size: int
    ) -> list[dict[str, Any]] | None:
        """Return one cell per variant (0 is beam search), decoded in turn; None if they were measured before."""
        if self.measured(name, translator.revision, [variant.to_dict() for variant in variants.values()]):
            say(f"{name}: measured already")
            return None
        block_sizes = ", ".join(str(k) for k in variants if k)
        say(f"{name}: {translator.name}@{translator.revision}, k = {block_sizes}")
        decoded = decode_text(pairs.source, translator, {str(k): one for k, one in variants.items()}, batch_size)
        return [_cell(k, variant, decoded[str(k)], decoded["1"], pairs) for k, variant in variants.items()]

    def write_views(self) -> list[Path]:
        """Write the Markdown tables and the scatter plot, and return their paths.

        Raises:
            OutputError: a file cannot be written.
        """
        return write_results(self.folder, {
            "table1.md": table1_markdown(self.document), "table4.md": table4_markdown(self.document),
            "table1.png": _scatter(self.document["series"]),
        })


def _cell(k: int, variant: Variant, result: DecodedText, greedy: DecodedText, pairs: TextPairs) -> dict[str, Any]:
    return {
        "block_size": k, "config": variant.to_dict(), **text_scores(result, pairs.target),
        "speed_up": greedy.seconds_per_sentence / max(result.seconds_per_sentence, 1e-9),
        "identical_to_greedy": same_share(result.texts, greedy.texts),
        "survival": survival_curve(result.traces, k) if result.traces else None,
    }


def _figures(cell: dict[str, Any] | None) -> str:
    """Return BLEU / mean accepted block size of a cell."""
    if cell is None:
        return "-"
    return f"{number_text(cell['bleu'], 2)} / {number_text(cell['mean_accepted_block_size'], 2)}"


COLUMNS = {
    "BLEU": ("bleu", 2), "chrF": ("chrf", 2), "mean accepted block size": ("mean_accepted_block_size", 2),
    "model calls": ("model_calls_per_sentence", 2), "tokens": ("tokens_per_sentence", 1),
    "ms/sentence": ("seconds_per_sentence", 2), "speed-up": ("speed_up", 2),
    "identical to greedy": ("identical_to_greedy", 4),
}
"""Columns of the detailed table: the cell's entry and its decimals."""


def table1_markdown(document: dict[str, Any]) -> str:
    """Return Table 1 as Markdown: ours with the paper's figures below, then all scores."""
    run = document["run"]
    entries = {name: document["series"][name] for name in SERIES if name in document["series"]}
    rows, details = [], []
    for name, entry in entries.items():
        series, cells = SERIES[name], {cell["block_size"]: cell for cell in entry["cells"]}
        shown = {k: cells.get(k) if k in series.block_sizes else None for k in BLOCK_SIZES}
        rows.append([f"**{series.title}**", *(_figures(shown[k]) for k in BLOCK_SIZES)])
        if series.paper:
            printed = (series.paper.get(k) for k in BLOCK_SIZES)
            rows.append([f"{series.title}, paper", *(f"{p[0]:.2f} / {p[1]:.2f}" if p else "-" for p in printed)])
        details += [[series.title, str(k), *_detail(cell)] for k, cell in shown.items() if cell is not None]
    networks = {SERIES[name].checkpoint: f"{entry['checkpoint']}@{entry['revision']}"
                for name, entry in entries.items()}
    missing = [role for role in CHECKPOINTS if role not in networks]
    parts = [
        "# Table 1: BLEU / mean accepted block size",
        f"{run['dev_sentences']} sentences (data {run['dev']}), batches of {run['batch_size']}, {run['device']}. "
        f"Networks: {', '.join(f'{role} {network}' for role, network in networks.items())}. {run['bleu']}.",
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        markdown_table(["k", *map(str, BLOCK_SIZES)], rows),
        f"The paper's figures: {document['paper']}, Table 1 and section 7.1; newstest2013, trained on WMT 2014 "
        "English-German, a network for each k. Ours are on other data; one network serves all k with its first k "
        "heads. Regular and Distillation have a frozen base, trained on true and on distilled text; Fine Tuning and "
        "Both are fine-tuned on them.",
        "## Quality and cost", markdown_table(["series", "k", *COLUMNS], details),
        f"Speed-up and agreement are to the same network's greedy decoding in the same run. {run['chrf']}.",
    ]
    return "\n\n".join(parts) + "\n"


def _detail(cell: dict[str, Any]) -> list[str]:
    scaled = {**cell, "seconds_per_sentence": 1000 * cell["seconds_per_sentence"]}
    return [number_text(scaled[key], digits) for key, digits in COLUMNS.values()]


def table4_markdown(document: dict[str, Any]) -> str:
    """Return Table 4 as Markdown: our networks on the test set, then the paper's rows."""
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
        f"Ours: {ours}, each sentence by itself, against cached greedy decoding of the same network in the same run. "
        f"The paper's: newstest2014, as printed. The test sets differ, and so BLEU does not compare. {run['bleu']}.",
        markdown_table(["model", "source", "BLEU", "speed-up", "mean accepted block size"], rows),
    ]
    return "\n\n".join(parts) + "\n"


def _scatter(series: dict[str, Any]) -> bytes:
    """Draw BLEU against mean accepted block size as the paper does beside its Table 1; ours left, the paper's right."""
    from matplotlib.figure import Figure  # heavy, and not among the dependencies of decoding

    figure = Figure(figsize=(11, 5), layout="constrained")
    ours, paper = figure.subplots(1, 2, sharey=True)
    for number, (name, column) in enumerate(SERIES.items()):
        cells = [cell for cell in series.get(name, {"cells": []})["cells"] if cell["block_size"] in column.block_sizes]
        points = {cell["block_size"]: (cell["bleu"], cell["mean_accepted_block_size"]) for cell in cells}
        for axes, figures in ((ours, points), (paper, column.paper)):
            if figures:
                axes.plot(*zip(*figures.values(), strict=True), marker="o", linewidth=1, color=f"C{number}",
                          label=column.title)
                for k, point in figures.items():
                    axes.annotate(str(k), point, (4, 3), textcoords="offset points", fontsize=7)
    for axes, title in ((ours, "ours"), (paper, "paper, newstest2013")):
        axes.set(xlabel="BLEU", title=title)
        axes.grid(alpha=0.3)
    lines = {line.get_label(): line for axes in (paper, ours) for line in axes.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=4, fontsize="small")
    ours.set_ylabel("mean accepted block size (k beside each point)")
    return figure_png(figure)

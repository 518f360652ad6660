"""Reproduce the scaling law of lookahead decoding, with Jacobi decoding and lookahead parallelism.

Fu et al. (2024), "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding": Figure 4 and equations 4
to 7, algorithm 1, and section 3.4.

Every setting is decoded greedily and must give the tokens of greedy decoding. In the paper's notation, W is the window,
N the size of the n-grams, G the number of candidates, and S the step compression: tokens / steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from superres.config import DecodeConfig, require
from superres.decoding.decode import decode, iterations
from superres.decoding.loop import BlockwiseLoop, Decoded
from superres.decoding.noise import noise_keys
from superres.decoding.proposers.lookahead.decoding import Layout, LookaheadDecoder
from superres.evaluation.benchmark import step_work
from superres.native.model import ROUNDS
from superres.pipeline.base import Pipeline
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, machine
from superres.system.output import figure_png, markdown_table, number_text, write_results
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = dict[str, Any]
Size = tuple[int, int, int]
"""W, N and G."""

PAPER = ("The paper (LLaMA-2-Chat-7B and others on A100 GPUs) reports a speed-up of up to 1.8 on MT-Bench with one "
         "GPU, and of up to 4 with several GPUs on code completion. Its Figure 4 has W = G.")
GREEDY = DecodeConfig(block_size=1)
PARALLEL = Path(__file__).with_name("lookahead_parallel.py")
ROUNDS_OF_WINDOWS = 3
"""Timed decodes of Jacobi decoding with a window, of which the shortest counts; there are few sources."""
RESAMPLED = 1000
"""Number of bootstrap samples of the sources, of an interval."""


@dataclass(frozen=True)
class Plan:
    """What to measure for a task.

    Attributes:
        ngrams: values of N with W = G.
        widths: values of W = G.
        middle: N and W of the settings whose G or W differs from the other one.
        few: number of sources of the slow measurements: with the engine `plain`, and of Jacobi decoding.
        has_plain: whether `plain` is measured.
        jacobi: block sizes of Jacobi decoding; 0 is the whole target.
        seeds: seeds of the random start of the window; 0 without that measurement.
        rounds: timed decodes of each source and setting, of which the shortest counts.
    """

    ngrams: Sequence[int]
    widths: Sequence[int]
    middle: tuple[int, int]
    few: int
    jacobi: Sequence[int]
    has_plain: bool = True
    seeds: int = 0
    rounds: int = 2

    def sizes(self) -> list[Size]:
        """Return the settings: W = G, then those that differ."""
        (size, width), equal = self.middle, [(w, n, w) for n in self.ngrams for w in self.widths]
        others = [w for w in self.widths if w != width]
        return equal + [(width, size, g) for g in others] + [(w, size, width) for w in others]

    def plain_sizes(self) -> list[Size]:
        """Return the settings for the engine `plain`."""
        return [(w, self.middle[0], w) for w in self.widths]


PLANS = {
    "text": Plan((2, 3, 4, 5), (1, 2, 4, 8, 16, 32), (4, 8), 20, (2, 4, 8, 16, 0), seeds=5),
    "images": Plan((2, 3, 4), (1, 2, 4, 8, 16), (3, 8), 1, (2, 4, 8, 16, 0), rounds=1),
}
QUICK = {
    "text": Plan((2, 4), (1, 8), (4, 8), 2, (2, 0), seeds=2, rounds=1),
    "images": Plan((2, 3), (1, 4), (3, 4), 1, (2,), has_plain=False, rounds=1),
}


@dataclass(frozen=True)
class Work:
    """Sources of a task, each int64 [1, S], and pipelines of one network by the name of the engine."""

    task: str
    unit: str
    sources: Sequence[Tensor]
    pipelines: dict[str, Pipeline]


def parse_numbers(text: str, option: str) -> list[int]:
    """Return the positive numbers in a list such as "1,2,4"; raise ConfigError for any other text."""
    parts = text.split(",")
    require(all(part.isdecimal() and int(part) for part in parts),
            f"{option} takes positive whole numbers such as 1,2,4, not {text!r}")
    return [int(part) for part in parts]


def text_work(data: Path, checkpoint: str, limit: int, engines: Sequence[str]) -> Work:
    """Return the first `limit` sentences of the parallel text `data`."""
    pipelines = {engine: Translator.load(checkpoint, "cpu", engine) for engine in engines}
    translator = pipelines[engines[0]]
    lines = read_pairs(data, translator.languages, limit).source
    sources = [torch.from_numpy(translator.codec.encode([line])) for line in lines if line.strip()]
    return Work("text", "sentence", sources, dict(pipelines))


def image_work(data: Path, checkpoint: str, limit: int, engines: Sequence[str]) -> Work:
    """Return the first `limit` faces of `data`."""
    pipelines = {engine: Upscaler.load(checkpoint, "cpu", engine) for engine in engines}
    upscaler = pipelines[engines[0]]
    faces = read_faces(data, upscaler.face_task, "valid", limit).lr
    return Work("images", "image", [upscaler.source_tokens(face[None]) for face in faces], dict(pipelines))


def lookahead(size: Size, **settings: Any) -> DecodeConfig:  # noqa: ANN401 -- those of `DecodeConfig`
    """Return the decoding settings for W, N and G."""
    window, ngram_size, candidates = size
    return DecodeConfig(
        block_size=ngram_size, proposer="lookahead", window=window, candidates=candidates, **settings)


def columns(size: Size) -> int:
    """Return the number of columns of a step on one process."""
    return Layout.of(lookahead(size), size[1], None).tree.size


def step_compression(decoded: Sequence[Decoded]) -> dict[str, float]:
    """Return tokens / steps of decodes, and its 95 % bootstrap interval over the sources."""
    tokens, steps = (np.array(counts, float) for counts in zip(*(
        (int(one.lengths.sum()), sum(trace.iterations for trace in one.traces)) for one in decoded), strict=True))
    chosen = np.random.default_rng(0).integers(len(tokens), size=(RESAMPLED, len(tokens)))
    low, high = np.quantile(tokens[chosen].sum(1) / steps[chosen].sum(1), [0.025, 0.975])
    return {"step_compression": tokens.sum() / steps.sum(), "low": low, "high": high,
            "steps": steps.sum() / len(decoded), "tokens": tokens.sum() / len(decoded)}


def equal_share(decoded: Sequence[Decoded], greedy: Sequence[Decoded]) -> float:
    """Return the share of the sources whose tokens are those of greedy decoding."""
    return sum(torch.equal(a.tokens, b.tokens) for a, b in zip(decoded, greedy, strict=True)) / len(decoded)


def measure(
    pipeline: Pipeline, sources: Sequence[Tensor], variants: Mapping[Any, DecodeConfig], rounds: int,
) -> dict[Any, Row]:
    """Decode each source with each of the `variants` in turn, and with greedy decoding.

    Returns `step_compression`, seconds per source, the speed-up over greedy decoding and `equal_share` by variant.
    """
    model, timer = pipeline.scoring, Timer(pipeline.device)
    everything = {None: GREEDY, **variants}
    for options in everything.values():
        for _ in range(ROUNDS if model.own_threads else 1):  # new sessions choose their number of threads
            list(islice(iterations(model, sources[0], options), 1))
    decoded: dict[Any, list[Decoded]] = {name: [] for name in everything}
    seconds = dict.fromkeys(everything, 0.0)
    for source in sources:
        shortest = dict.fromkeys(everything, np.inf)
        for turn in range(rounds):
            for name, options in everything.items():
                started = timer.now()
                made = decode(model, source, options)
                shortest[name] = min(shortest[name], timer.now() - started)
                if not turn:
                    decoded[name].append(made)
        for name, least in shortest.items():
            seconds[name] += least / len(sources)
    return {name: {**step_compression(decoded[name]), "seconds": seconds[name],
                   "speed_up": seconds[None] / seconds[name], "equal": equal_share(decoded[name], decoded[None])}
            for name in everything}


@contextmanager
def one_torch_thread(pipeline: Pipeline) -> Iterator[None]:
    """Let torch's engines use one thread; several would wait for one another at every operation of small networks."""
    before = torch.get_num_threads()
    if not pipeline.scoring.own_threads:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def expected_tokens(alpha: float, gamma: npt.ArrayLike, guesses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the expected number of tokens per step with `guesses` b of `gamma` tokens each (equation 5).

    A token passes with probability `alpha` in [0, 1]. For b = 1, this is equation 4:
    (1 - alpha**(gamma + 1)) / (1 - alpha).
    """
    places, guesses = np.asarray(gamma), np.asarray(guesses)
    powers = np.arange(1, places.max() + 1)
    missed = (1 - alpha**powers) ** guesses[..., None] * (powers <= places[..., None])  # [..., gamma]
    result: npt.NDArray[np.float64] = 1 + places - missed.sum(-1)
    return result


def predicted(alpha: float, f: float, gamma: npt.ArrayLike, guesses: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the step compression S = (f - 1 + E) / f, where one step of `f` has good guesses (equation 7)."""
    return (f - 1 + expected_tokens(alpha, gamma, guesses)) / f


def fitted(rows: Sequence[Row]) -> dict[str, float]:
    """Fit `alpha` and `f` of equation 7 to the step compression of settings with W = G = b and N - 1 = gamma.

    The squared error is least over alpha in steps of 0.001, where the best `f`, at least 1, has a closed form. `error`
    is the root mean squared error.
    """
    gamma, guesses = (np.array([row[name] for row in rows]) for name in ("block_size", "candidates"))
    gained = np.array([row["step_compression"] for row in rows]) - 1
    best = {"error": np.inf}
    for alpha in np.arange(1, 1000) / 1000:
        expected = expected_tokens(alpha, gamma - 1, guesses) - 1
        share = min(1.0, float(gained @ expected / (expected @ expected)))  # 1 / f
        error = float(np.sqrt(np.mean((gained - share * expected) ** 2)))
        if share > 0 and error < best["error"]:
            best = {"alpha": float(alpha), "f": 1 / share, "error": error}
    return best


@torch.inference_mode()
def decode_from(pipeline: Pipeline, source: Tensor, options: DecodeConfig, seed: int) -> Decoded:
    """Decode with a window that starts with random tokens."""
    model, size = pipeline.scoring, options.block_size or 1
    session = LookaheadDecoder.open_session(model, source, options, size)
    loop = BlockwiseLoop(model, session, options, noise_keys(None, 1, source.device), size)
    decoding, pending = loop.plain, loop.state.pending
    if not isinstance(decoding, LookaheadDecoder):
        raise TypeError("only lookahead has a window")
    decoding.window.random_(0, model.vocabulary, generator=torch.Generator().manual_seed(seed))
    cells = decoding.window[:, decoding.stages, decoding.columns]
    pending[:, pending.shape[1] - cells.shape[1] :] = cells  # the columns of the first step
    while not loop.complete:
        loop.iterate()
        loop.done()
    return loop.result()


def random_starts(pipeline: Pipeline, sources: Sequence[Tensor], size: Size, seeds: int) -> Row:
    """Return the step compression of windows that start with 0, and with random tokens by seed (algorithm 2)."""
    options = lookahead(size)
    zero = [decode(pipeline.scoring, source, options) for source in sources]
    by_seed = [[decode_from(pipeline, source, options, seed * len(sources) + number)
                for number, source in enumerate(sources)] for seed in range(seeds)]
    return {"size": size, "zero": step_compression(zero), "random": [step_compression(row) for row in by_seed],
            "equal": min(equal_share(row, zero) for row in by_seed)}


def measure_task(work: Work, plan: Plan, report: Callable[[str], None]) -> Row:
    """Measure a task: the grid on the first engine, part of it on the others, Jacobi decoding and random starts."""
    (engine, pipeline), *others = work.pipelines.items()
    length, few = pipeline.model_config.target_length, work.sources[: plan.few]
    per_column = 2 * step_work(pipeline, 0)[0]

    def rows_of(pipeline: Pipeline, sources: Sequence[Tensor], sizes: Sequence[Size]) -> tuple[Row, list[Row]]:
        fitting = [size for size in dict.fromkeys(sizes) if size[0] + size[1] - 2 <= length]
        with one_torch_thread(pipeline):
            made = measure(pipeline, sources, {size: lookahead(size) for size in fitting}, plan.rounds)
        return made[None], [{
            "window": size[0], "block_size": size[1], "candidates": size[2], "columns": columns(size),
            "operations": per_column * columns(size), **made[size]} for size in fitting]

    report(f"{work.task}: the grid with {engine}")
    greedy, rows = rows_of(pipeline, work.sources, plan.sizes())
    engines = [{"engine": engine, "code": pipeline.scoring.code, "sources": len(work.sources), "greedy": greedy,
                "rows": rows}]
    for name, other in others if plan.has_plain else ():
        report(f"{work.task}: {name}")
        greedy, rows = rows_of(other, few, plan.plain_sizes())
        engines.append({"engine": name, "code": other.scoring.code, "sources": len(few), "greedy": greedy,
                        "rows": rows})
    report(f"{work.task}: Jacobi decoding")
    blocks = [block or length for block in plan.jacobi]
    jacobi = {block: DecodeConfig(block_size=block, proposer="jacobi") for block in blocks}
    windows = {block: options for block, options in jacobi.items() if block < length}
    blockwise = measure(pipeline, few, windows, ROUNDS_OF_WINDOWS)
    if len(windows) < len(jacobi):
        report(f"{work.task}: Jacobi decoding of the whole target")
        blockwise |= measure(pipeline, few, {length: jacobi[length]}, 1)
    equal = [row for row in engines[0]["rows"] if row["window"] == row["candidates"]]
    made = {"checkpoint": f"{pipeline.name}@{pipeline.revision}", "unit": work.unit, "length": length,
            "engines": engines, "fit": fitted(equal), "few": len(few),
            "jacobi": [{"block_size": block, **blockwise[block]} for block in blocks]}
    if plan.seeds:
        report(f"{work.task}: random starts")
        size, width = plan.middle
        made["random_start"] = random_starts(pipeline, work.sources, (width, size, width), plan.seeds)
    return made


def run_parallel(data: Path, checkpoint: str, limit: int, counts: Sequence[int], widths: Sequence[int]) -> list[Row]:
    """Return measurements of W = G in `widths` by every number of processes: `lookahead_parallel.py` under torchrun.

    `equal` says whether the tokens are those of the first number of processes.
    """
    rows: list[Row] = []
    for count in counts:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}",
                 str(PARALLEL), str(data), f"--checkpoint={checkpoint}", f"--limit={limit}",
                 f"--widths={','.join(map(str, widths))}"]
        threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # with one process, too
        made = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=threads).stdout.splitlines()
        rows += [json.loads(line) for line in made if line.startswith("{")]
    first = {(row["window"], row["sampling"]): row["tokens"] for row in rows if row["processes"] == counts[0]}
    return [{**row, "equal": row["tokens"] == first[row["window"], row["sampling"]]} for row in rows]


def lookahead_markdown(document: Row) -> str:
    """Return the measurements as Markdown."""
    parts = [
        "# Lookahead decoding",
        f"{PAPER} Ours: `{document['command']}`; "
        + ", ".join(f"{name} {value}" for name, value in document["machine"].items() if value is not None) + ".",
        "S is tokens / steps, with its 95 % bootstrap interval over the sources; the speed-up is over greedy decoding "
        "with the same engine, encoder included, one source at a time.",
    ]
    for task, made in document["tasks"].items():
        parts += [f"## {task.capitalize()}: {made['checkpoint']}", *_task_parts(made)]
    if document["parallel"]:
        parts += ["## Lookahead parallelism", *_parallel_parts(document["parallel"])]
    return "\n\n".join(parts) + "\n"


def _task_parts(made: Row) -> list[str]:
    """Return the tables of a task."""
    unit, fit, parts = made["unit"], made["fit"], []
    for engine in made["engines"]:
        header = ["W, N, G", "columns", "MFLOP per step", "S", "95 % interval", f"ms per {unit}", "speed-up",
                  "equal to greedy"]
        table = [["greedy", "1", "", "1.00", "", number_text(1000 * engine["greedy"]["seconds"], 2), "1.00", ""]]
        table += [[f"{row['window']}, {row['block_size']}, {row['candidates']}", str(row["columns"]),
                   number_text(row["operations"] / 1e6, 1), *_figures(row)] for row in engine["rows"]]
        parts += [f"Engine `{engine['code']}`, {_counted(engine['sources'], unit)}:", markdown_table(header, table)]
    parts.append(f"Equation 7 fitted to W = G: alpha {fit['alpha']:.3f}, f {fit['f']:.2f}, root mean squared error "
                 f"{fit['error']:.3f}.")
    blocks = [[f"{row['block_size']}" + (", the whole target" if row["block_size"] == made["length"] else ""),
               number_text(row["steps"], 1), *_figures(row)] for row in made["jacobi"]]
    parts.append(f"Jacobi decoding of {_counted(made['few'], unit)} with `{made['engines'][0]['code']}`:")
    parts.append(markdown_table(["k", f"steps per {unit}", "S", "95 % interval", f"ms per {unit}",
                                 "speed-up", "equal to greedy"], blocks))
    if "random_start" in made:
        start = made["random_start"]
        seeds = [row["step_compression"] for row in start["random"]]
        parts.append(f"Window of {', '.join(map(str, start['size']))} that starts with 0: S "
                     f"{start['zero']['step_compression']:.3f}; with random tokens: {np.mean(seeds):.3f} "
                     f"({min(seeds):.3f} to {max(seeds):.3f} over {len(seeds)} seeds); equal tokens: "
                     f"{start['equal']:.0%}.")
    return parts


def _counted(count: int, unit: str) -> str:
    """Return a number of sources as text."""
    return f"{count} {unit}{'s' * (count > 1)}"


def _figures(row: Row) -> list[str]:
    """Return S, its interval unless there is a single source, time, speed-up and equality of a measurement."""
    interval = f"{row['low']:.2f} to {row['high']:.2f}" if row["low"] < row["high"] else "-"
    digits = 2 if row["speed_up"] >= 0.1 else 4
    return [number_text(row["step_compression"], 2), interval, number_text(1000 * row["seconds"], 2),
            number_text(row["speed_up"], digits), f"{row['equal']:.0%}"]


def _parallel_parts(rows: Sequence[Row]) -> list[str]:
    """Return the table of lookahead parallelism; the columns are those of the process with the most of them."""
    first = rows[0]
    header = ["sampling", "W = G", "processes", "columns per process", "S", "messages per step", "bytes per step",
              "ms per step", "ms per sentence", "tokens equal"]
    return [
        f"{_counted(first['sentences'], 'sentence')}, N = {first['block_size']}, engine `plain` on {first['device']}, "
        f"one thread per process, {first['backend']}. Strong scaling: rows of equal W; weak scaling: rows of equal W "
        "per process. Messages and bytes are those that a process sends. Processes beyond the number of cores share "
        "cores.",
        markdown_table(header, [[
            row["sampling"], str(row["window"]), str(row["processes"]), str(row["columns"]),
            number_text(row["step_compression"], 2), number_text(row["messages"], 2), number_text(row["bytes"], 0),
            number_text(1000 * row["seconds"] / row["steps"], 2), number_text(1000 * row["seconds"], 1),
            "yes" if row["equal"] else "no"] for row in rows])]


def lookahead_plot(document: Row) -> bytes:
    """Return a PNG: a column per task; above S by the columns of a step with equation 7, below the speed-up."""
    from matplotlib.figure import Figure  # an optional dependency, slow to import

    tasks = document["tasks"]
    figure = Figure(figsize=(4.6 * len(tasks) + 0.6, 7.6), layout="constrained")
    panels = figure.subplots(2, len(tasks), squeeze=False, sharex="col")
    for (above, below), (task, made) in zip(panels.T, tasks.items(), strict=True):
        fit, rows = made["fit"], made["engines"][0]["rows"]
        above.set(title=f"{task}: alpha = {fit['alpha']:.2f}, f = {fit['f']:.1f}",
                  ylabel="step compression S (tokens per step)")
        below.set(xlabel="columns per step, (W + G)(N - 1)", ylabel="speed-up over greedy decoding (times)")
        _draw_compression(above, rows, fit)
        for engine in made["engines"]:
            _draw_speed(below, engine)
        ticks = [2**power for power in range(1, 9) if 2**power <= 1.2 * max(row["columns"] for row in rows)]
        for axes in (above, below):
            axes.axhline(1, color="black", linewidth=1)
            axes.set_xscale("log", base=2)
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.grid(color="0.9")
        below.set_ylim(0, None)
    entries = {label: handle for axes in panels.flat
               for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure_png(figure)


def _sizes_of(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Return the rows with W = G by N."""
    equal = [row for row in rows if row["window"] == row["candidates"]]
    return {size: [row for row in equal if row["block_size"] == size]
            for size in sorted({row["block_size"] for row in equal})}


def _draw_compression(axes: Axes, rows: Sequence[Row], fit: Row) -> None:
    """Draw the measured S with intervals, and equation 7 by N as lines."""
    for size, own in _sizes_of(rows).items():
        x, s = ([row[name] for row in own] for name in ("columns", "step_compression"))
        around = np.abs([[row["step_compression"] - row[bound] for row in own] for bound in ("low", "high")])
        axes.errorbar(x, s, around, color=f"C{size - 2}", marker="o", markersize=5, linestyle="", capsize=2,
                      label=f"W = G, N = {size}")
        guesses = np.geomspace(own[0]["window"], own[-1]["window"], 60)
        axes.plot(2 * guesses * (size - 1), predicted(fit["alpha"], fit["f"], np.full(60, size - 1), guesses),
                  color=f"C{size - 2}", linewidth=1)
    for label, marker, others in (
            ("G < W", "v", [row for row in rows if row["window"] > row["candidates"]]),
            ("G > W", "^", [row for row in rows if row["window"] < row["candidates"]])):
        for row in others:
            axes.plot(row["columns"], row["step_compression"], marker=marker, markersize=5, markerfacecolor="none",
                      color=f"C{row['block_size'] - 2}")
        axes.plot([], [], linestyle="", marker=marker, markersize=5, markerfacecolor="none", color="black", label=label)
    axes.plot([], [], color="black", linewidth=1, label="equation 7, fitted to W = G")


def _draw_speed(axes: Axes, engine: Row) -> None:
    """Draw the speed-up of an engine by N."""
    plain = engine["engine"] == "plain"
    for size, own in _sizes_of(engine["rows"]).items():
        axes.plot([row["columns"] for row in own], [row["speed_up"] for row in own], color=f"C{size - 2}",
                  marker="s" if plain else "o", markersize=5, markerfacecolor="none" if plain else None, linewidth=1,
                  linestyle=":" if plain else "-")
    axes.plot([], [], color="black", marker="s" if plain else "o", markerfacecolor="none" if plain else None,
              linewidth=1, linestyle=":" if plain else "-", label=f"engine {engine['engine']}")


def reproduce(
    works: Sequence[Work], plans: Mapping[str, Plan], parallel: Callable[[], list[Row]], command: str,
    report: Callable[[str], None],
) -> Row:
    """Measure every task and lookahead parallelism, and return the document of `lookahead_markdown`."""
    tasks = {work.task: measure_task(work, plans[work.task], report) for work in works}
    report("lookahead parallelism")
    return {"command": command, "machine": machine(torch.device("cpu")), "tasks": tasks, "parallel": parallel()}


def write_lookahead(document: Row, folder: Path) -> list[Path]:
    """Write lookahead.json, lookahead.md and lookahead.png to `folder`, and return their paths."""
    return write_results(folder, {"lookahead.json": document, "lookahead.md": lookahead_markdown(document),
                                  "lookahead.png": lookahead_plot(document)})

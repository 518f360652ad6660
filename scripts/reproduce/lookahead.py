"""Reproduce the scaling law of lookahead decoding, with Jacobi decoding and lookahead parallelism.

Fu et al. (2024), "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding":
Figure 4 and equations 4 to 7, algorithm 1, and section 3.4.

Every setting is decoded greedily and must give the tokens of greedy decoding. In the paper's
notation, W is the window, N the size of the n-grams, G the number of candidates, and S the step
compression: tokens / steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path += [str(Path(__file__).resolve().parents[1]),
             str(Path(__file__).resolve().parents[1] / "benchmark")]

from cost_model import expected_tokens
from decodes import Decoded, decode, iterations, result_of
from measurements import (
    Columns,
    Document,
    Line,
    Panel,
    Row,
    Values,
    columns_table,
    draw,
    interval,
    ratio,
    values,
)
from superres.config import DecodeConfig, require
from superres.decoding.algorithm import Algorithm
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.noise import noise_keys
from superres.decoding.proposers.lookahead.iteration import Layout, LookaheadDecoder
from superres.evaluation.workload import step_work
from superres.pipeline.pipeline import Pipeline
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer
from superres.system.output import markdown_table
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs

Size = tuple[int, int, int]
"""W, N and G."""

GREEDY = DecodeConfig(block_size=1)
PARALLEL = Path(__file__).with_name("lookahead_parallel.py")
ROUNDS_OF_WINDOWS = 3
"""Timed decodes of Jacobi decoding with a window, of which the shortest counts; there are few
sources."""

@dataclass(frozen=True)
class Plan:
    """What to measure for a task.

    Attributes:
        ngrams: values of N with W = G.
        widths: values of W = G.
        middle: N and W of the settings whose G or W differs from the other one.
        few: number of sources of the slow measurements: with the engine `plain`, and of Jacobi
            decoding.
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
    """Sources of a task, each int64 [1, S], and pipelines of one network by the name of the
    engine."""

    task: str
    unit: str
    sources: Sequence[Tensor]
    pipelines: dict[str, Pipeline]


def parse_numbers(text: str, option: str) -> list[int]:
    """Return the positive numbers in a list such as "1,2,4"; raise ConfigError for any other
    text."""
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
    return Work("images", "image", [upscaler.source_tokens(face[None]) for face in faces],
                dict(pipelines))


def lookahead(size: Size, **settings: Any) -> DecodeConfig:  # noqa: ANN401 -- those of `DecodeConfig`
    """Return the decoding settings for W, N and G."""
    window, ngram_size, candidates = size
    return DecodeConfig(
        block_size=ngram_size, proposer="lookahead", window=window, candidates=candidates,
        **settings)


def columns(size: Size) -> int:
    """Return the number of columns of a step on one process."""
    return Layout.of(lookahead(size), size[1], None).tree.size


def step_compression(decoded: Sequence[Decoded]) -> dict[str, float]:
    """Return tokens / steps of decodes, and its 95 % bootstrap interval over the sources."""
    tokens, steps = (np.array(counts, float) for counts in zip(*(
        (int(one.lengths.sum()), sum(trace.iterations for trace in one.traces)) for one in decoded),
                                                               strict=True))
    mean, samples = ratio(tokens, steps)
    low, high = interval(samples)
    return {"step_compression": mean, "low": low, "high": high, "steps": steps.sum() / len(decoded),
            "tokens": tokens.sum() / len(decoded)}


def equal_share(decoded: Sequence[Decoded], greedy: Sequence[Decoded]) -> float:
    """Return the share of the sources whose tokens are those of greedy decoding."""
    return (sum(torch.equal(a.tokens, b.tokens) for a, b in zip(decoded, greedy, strict=True))
            / len(decoded))


def measure(
    pipeline: Pipeline, sources: Sequence[Tensor], variants: Mapping[Any, DecodeConfig],
    rounds: int,
) -> dict[Any, Values]:
    """Decode each source with each of the `variants` in turn, and with greedy decoding.

    Returns `step_compression`, seconds per source, the speed-up over greedy decoding and
    `equal_share` by variant.
    """
    model, timer = pipeline.scoring, Timer(pipeline.device)
    everything = {None: GREEDY, **variants}
    for options in everything.values():  # the first decode starts what later ones find running
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
                   "speed_up": seconds[None] / seconds[name],
                   "equal": equal_share(decoded[name], decoded[None])}
            for name in everything}


@contextmanager
def one_torch_thread(pipeline: Pipeline) -> Iterator[None]:
    """Let torch's engines use one thread; several would wait for one another at every operation of
    small networks."""
    before = torch.get_num_threads()
    if not pipeline.scoring.own_threads:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def predicted(alpha: float, f: float, gamma: int, guesses: int) -> float:
    """Return the step compression S = (f - 1 + E) / f, where one step of `f` has good guesses
    (equation 7)."""
    return (f - 1 + expected_tokens(alpha, gamma, guesses)) / f


def fitted(rows: Sequence[Values]) -> dict[str, float]:
    """Fit `alpha` and `f` of equation 7 to the step compression of settings with W = G = b and N -
    1 = gamma.

    The squared error is least over alpha in steps of 0.001, where the best `f`, at least 1, has a
    closed form. `error` is the root mean squared error.
    """
    gained = np.array([row["step_compression"] for row in rows]) - 1
    best = {"error": np.inf}
    for alpha in np.arange(1, 1000) / 1000:
        expected = np.array([expected_tokens(alpha, row["block_size"] - 1, row["candidates"])
                             for row in rows]) - 1
        share = min(1.0, float(gained @ expected / (expected @ expected)))  # 1 / f
        error = float(np.sqrt(np.mean((gained - share * expected) ** 2)))
        if share > 0 and error < best["error"]:
            best = {"alpha": float(alpha), "f": 1 / share, "error": error}
    return best


@torch.inference_mode()
def decode_from(pipeline: Pipeline, source: Tensor, options: DecodeConfig, seed: int) -> Decoded:
    """Decode with a window that starts with random tokens."""
    model, size = pipeline.scoring, options.block_size or 1
    algorithm = Algorithm(model, options)
    session = LookaheadDecoder.open_session(algorithm, source, size)
    loop = BlockwiseLoop(algorithm, session, noise_keys(None, 1, source.device), size)
    decoding, pending = loop.plain, loop.plain.state.pending
    if not isinstance(decoding, LookaheadDecoder):
        raise TypeError("only lookahead has a window")
    decoding.window.random_(0, model.vocabulary, generator=torch.Generator().manual_seed(seed))
    cells = decoding.window[:, decoding.stages, decoding.columns]
    pending[:, pending.shape[1] - cells.shape[1] :] = cells  # the columns of the first step
    while not loop.complete:
        loop.run(1)
        loop.done()
    return result_of(loop)


def random_starts(pipeline: Pipeline, sources: Sequence[Tensor], size: Size, seeds: int) -> Values:
    """Return the step compression of windows that start with 0, and with random tokens by seed
    (algorithm 2)."""
    options = lookahead(size)
    zero = [decode(pipeline.scoring, source, options) for source in sources]
    by_seed = [[decode_from(pipeline, source, options, seed * len(sources) + number)
                for number, source in enumerate(sources)] for seed in range(seeds)]
    return {"size": size, "zero": step_compression(zero),
            "random": [step_compression(row) for row in by_seed],
            "equal": min(equal_share(row, zero) for row in by_seed)}


def task_rows(work: Work, plan: Plan) -> Iterator[Row]:
    """Return the rows of a task: the grid on the first engine, part of it on the others, Jacobi and
    random starts."""
    (engine, pipeline), *others = work.pipelines.items()
    common = {"checkpoint": f"{pipeline.name}@{pipeline.revision}"}
    yield Row(f"{work.task} {engine}", lambda: grid(pipeline, work, work.sources, plan.sizes(),
                                                    plan.rounds),
              {**common, "code": pipeline.scoring.code, "sizes": plan.sizes(),
               "sources": len(work.sources)})
    few = work.sources[: plan.few]
    for name, other in others if plan.has_plain else ():
        yield Row(f"{work.task} {name}", lambda other=other: grid(other, work, few,
                                                                  plan.plain_sizes(), plan.rounds),
                  {**common, "code": other.scoring.code, "sizes": plan.plain_sizes(),
                   "sources": len(few)})
    yield Row(f"{work.task} jacobi", lambda: jacobi(pipeline, few, plan.jacobi),
              {**common, "blocks": plan.jacobi})
    if plan.seeds:
        size, width = plan.middle
        yield Row(f"{work.task} random start",
                  lambda: random_starts(pipeline, work.sources, (width, size, width), plan.seeds),
                  common)


def grid(pipeline: Pipeline, work: Work, sources: Sequence[Tensor], sizes: Sequence[Size],
         rounds: int) -> Values:
    """Measure all settings that fit the network's length with one engine."""
    length, per_column = pipeline.model_config.target_length, 2 * step_work(pipeline, 0)[0]
    fitting = [size for size in dict.fromkeys(sizes) if size[0] + size[1] - 2 <= length]
    with one_torch_thread(pipeline):
        made = measure(pipeline, sources, {size: lookahead(size) for size in fitting}, rounds)
    return {"unit": work.unit, "greedy": made[None], "rows": [{
        "window": size[0], "block_size": size[1], "candidates": size[2], "columns": columns(size),
        "operations": per_column * columns(size), **made[size]} for size in fitting]}


def jacobi(pipeline: Pipeline, sources: Sequence[Tensor], sizes: Sequence[int]) -> Values:
    """Measure Jacobi decoding; 0 among the block sizes is the whole target, which is decoded
    once."""
    length = pipeline.model_config.target_length
    blocks = {block or length: DecodeConfig(block_size=block or length, proposer="jacobi")
              for block in sizes}
    made = measure(pipeline, sources, {k: options for k, options in blocks.items() if k < length},
                   ROUNDS_OF_WINDOWS)
    if length in blocks:
        made |= measure(pipeline, sources, {length: blocks[length]}, 1)
    return {"length": length, "rows": [{"block_size": block, **made[block]} for block in blocks]}


def parallel_rows(data: Path, checkpoint: str, limit: int, counts: Sequence[int],
                  widths: Sequence[int]
                  ) -> Iterator[Row]:
    """Return a row per number of processes: W = G in `widths`, by `lookahead_parallel.py` under
    torchrun."""
    for count in counts:
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                 f"--nproc-per-node={count}", str(PARALLEL), str(data),
                 f"--checkpoint={checkpoint}", f"--limit={limit}",
                 f"--widths={','.join(map(str, widths))}"]

        def made(words: list[str] = words) -> Values:
            threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # with one process, too
            printed = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True,
                                     env=threads).stdout
            return {"rows": [json.loads(line) for line in printed.splitlines()
                             if line.startswith("{")]}

        yield Row(f"{count} processes", made, {"checkpoint": checkpoint, "limit": limit,
                                               "widths": widths})


# Views


SETTINGS: Columns = {
    "W": ("window", 0), "N": ("block_size", 0), "G": ("candidates", 0), "columns": ("columns", 0),
    "MFLOP per step": (lambda row: row["operations"] / 1e6, 1), "S": ("step_compression", 2),
    "from": ("low", 2), "to": ("high", 2), "ms": (lambda row: 1000 * row["seconds"], 2),
    "speed-up": ("speed_up", 2), "equal to greedy": ("equal", 2),
}
PROCESSES: Columns = {
    "sampling": ("sampling", 0), "W = G": ("window", 0), "processes": ("processes", 0),
    "columns per process": ("columns", 0), "S": ("step_compression", 2),
    "messages per step": ("messages", 2), "bytes per step": ("bytes", 0),
    "ms per step": (lambda row: 1000 * row["seconds"] / row["steps"], 2),
    "ms per sentence": (lambda row: 1000 * row["seconds"], 1), "tokens equal": ("equal", 0),
}


def engines_of(document: Document, task: str) -> dict[str, Values]:
    """Return the grids of a task by engine, the first engine first."""
    return {name: made for name, made in values(document, f"{task} ").items() if "greedy" in made}


def equal_sizes(rows: Sequence[Values]) -> list[Values]:
    """Return the rows with W = G."""
    return [row for row in rows if row["window"] == row["candidates"]]


def views(document: Document) -> dict[str, str]:
    """Return, by task, S with its interval and speed-up by W = G and N; Jacobi decoding; processes;
    all settings."""
    made, settings = dict[str, str](), dict[str, str]()
    for task in ("text", "images"):
        for number, (engine, grid_of) in enumerate(engines_of(document, task).items()):
            settings[f"{task}-{engine}"] = columns_table(grid_of["rows"], SETTINGS)
            if number == 0:
                made[task] = grid_table(equal_sizes(grid_of["rows"]))
                fit = fitted(equal_sizes(grid_of["rows"]))
                made[f"{task}-fit"] = (f"Equation 7 fitted to W = G: alpha {fit['alpha']:.3f}, f "
                                       f"{fit['f']:.2f}, root mean squared error "
                                       f"{fit['error']:.3f}.")
        if start := values(document, f"{task} ").get("random start"):
            seeds = [row["step_compression"] for row in start["random"]]
            made[f"{task}-start"] = (f"Window of {', '.join(map(str, start['size']))} that starts "
                                     f"with 0: S {start['zero']['step_compression']:.3f}; with "
                                     f"random tokens: {np.mean(seeds):.3f} ({min(seeds):.3f} to "
                                     f"{max(seeds):.3f}).")
    blocks = [{"task": task, **row} for task in ("text", "images")
              for row in values(document, f"{task} ").get("jacobi", {"rows": []})["rows"]]
    made["jacobi"] = columns_table(blocks, {"task": ("task", 0), "k": ("block_size", 0),
                                            "steps": ("steps", 1), "S": ("step_compression", 2),
                                            "speed-up": ("speed_up", 4),
                                            "equal to greedy": ("equal", 2)})
    shared = [row for name, found in values(document).items() if name.endswith(" processes")
              for row in found["rows"]]
    first = {(row["window"], row["sampling"]): row["tokens"] for row in reversed(shared)}
    made["parallel"] = columns_table(
        [{**row, "equal": row["tokens"] == first[row["window"], row["sampling"]]}
         for row in shared], PROCESSES)
    return made | settings


def grid_table(rows: Sequence[Values]) -> str:
    """Return S with half the width of its interval, and the speed-up in brackets, by W = G (down)
    and N (across)."""
    found = {(row["window"], row["block_size"]): f"{row['step_compression']:.2f} "
             f"±{(row['high'] - row['low']) / 2:.2f} ({row['speed_up']:.2f})" for row in rows}
    widths, sizes = (sorted({key[place] for key in found}) for place in (0, 1))
    return markdown_table(["W = G", *(f"N = {size}" for size in sizes)],
                          [[str(width), *(found.get((width, size), "-") for size in sizes)]
                           for width in widths])


def plots(document: Document) -> dict[str, bytes]:
    """Return a plot with a column per task: S by the columns of a step with equation 7 above, the
    speed-up below."""
    above, below = list[Panel](), list[Panel]()
    for task in ("text", "images"):
        grids = engines_of(document, task)
        rows = equal_sizes(next(iter(grids.values()))["rows"])
        fit = fitted(rows)
        axes = {"xscale": "log", "xlabel": "columns per step, (W + G)(N - 1)"}
        measured, speeds = list[Line](), list[Line]()
        for size in sorted({row["block_size"] for row in rows}):
            own = [row for row in rows if row["block_size"] == size]
            measured.append(Line([(row["columns"], row["step_compression"]) for row in own],
                                 f"W = G, N = {size}", f"C{size - 2}", "o"))
            measured.append(
                Line([(row["columns"], predicted(fit["alpha"], fit["f"], size - 1, row["window"]))
                      for row in own], "equation 7", f"C{size - 2}", "-"))
            for engine, grid_of in grids.items():
                speeds.append(
                    Line([(row["columns"], row["speed_up"]) for row in equal_sizes(grid_of["rows"])
                          if row["block_size"] == size], None, f"C{size - 2}",
                         "s:" if engine == "plain" else "o-"))
        above.append(Panel(measured, {**axes, "title": f"{task}: alpha = {fit['alpha']:.2f}, f = "
                                      f"{fit['f']:.1f}", "ylabel": "step compression S (tokens per "
                                      "step)"}))
        below.append(Panel(speeds, {**axes, "ylabel": "speed-up over greedy decoding (dotted: "
                                    "plain)"}))
    return {"lookahead.png": draw([*above, *below], 2, (10, 8))}

"""Measure the speed of decoding: the one command that makes the tables of speed in README and
docs/.

    python scripts/benchmark/speed.py --faces dev.npz --text test_2017_flickr --output speed

Every variant of the compiled code decodes in a process of its own, and all processes and ways to
decode take turns; the shortest of the rounds counts. With --beside, another checkout of superres
takes its turns too, by the variant that it chooses or the first of --variants, and `beside` is a
table of its times over ours. --publish fills README and docs/.

Parts: `faces` (one at a time), `batch` (64 faces), `text` (beside CTranslate2), `never-slower` (CPU
time of the default over that of one token per step), `first-use` (from an empty cache), and `peers`
(the network without compiled code, and transformers' GPT-2 of its size).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from first_use import first_use
from measurements import (
    MEASUREMENTS,
    ROOT,
    Busy,
    Faces,
    Output,
    Row,
    Table,
    Text,
    Values,
    commit,
    run,
)
from measurements import main as fill_pages
from speed_worker import PEER
from superres.config import (
    DEFAULT_CASCADE,
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    require,
)
from superres.evaluation.benchmark import decode_costs
from superres.evaluation.text import bleu
from superres.evaluation.timing import require_idle
from superres.evaluation.workload import image_workload
from superres.native.build import FORCED_VARIANT, candidates, forced_variant, processor
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import cpu_name
from superres.system.output import write_results
from superres.tasks.face_data import read_faces
from superres.tasks.translation import read_pairs

PARTS = "faces", "batch", "text", "never-slower", "first-use", "peers"
ENGINES = "native-int8", "native"
GREEDY: Values = {"block_size": 1}
EPSILON: Values = {"accept": "distance", "epsilon": 2}
WAYS: dict[str, Values] = {
    "greedy": GREEDY, "exact, the default": {}, "exact, k = 10": {"block_size": 10},
    "epsilon 2": EPSILON, "sampled at temperature 0.9": {"temperature": 0.9}}
"""Decoding options by name, as a user gives them."""
CAPTIONS: dict[str, Values] = {"greedy": GREEDY, "the default": {}, "k = 4": {"block_size": 4}}
BATCHES = {"faces": (1, 8, 32, 64), "captions": (1, 8, 32, 160)}
"""Inputs that the default and one token per step decode at once."""
LEAST = {"faces": 2, "captions": 32}
"""Inputs of such a case, if fewer are decoded at once: a single caption mostly reads the weights
from memory."""
ONE_BY_ONE, TOGETHER, BATCH_SIZE = 64, 192, 32
"""Captions that are translated one at a time, those that are translated together, and how many of
these at once."""
HEADINGS = {"x86-64-v2": "SSE 4.2", "x86-64-v3": "AVX2", "x86-64-v3-vnni": "AVX2 with VNNI",
            "x86-64-v4": "AVX-512", "aarch64": "NEON", "aarch64-dotprod": "NEON with dot products"}
"""What a variant has, by its name."""
PEER_LIMITS = {"x86-64-v3": {"CT2_FORCE_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}
"""Environment in which CTranslate2 uses the instructions of a variant."""
WORKER = (f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import speed_worker; "
          "speed_worker.serve()")

Worker = Callable[..., Values]
"""Decodes with one variant of one checkout: the arguments and the result are those of
`speed_worker.answer`."""


@dataclass(frozen=True)
class Case:
    """Decodes that take turns: `ways`, an engine and its options by name, of the same `inputs`,
    `at_once` per call.

    Before the timed `rounds`, every way decodes `warm_up` of the inputs. The least of `clock`,
    seconds of the wall or of the processor, counts. None of `threads` stands for torch's number,
    and of `batch_size` for the default. With `references`, translations of the inputs, the answers
    have BLEU.
    """

    checkpoint: str
    ways: dict[str, tuple[str, Values]]
    inputs: list[Any]
    at_once: int
    rounds: int
    warm_up: int = 1
    threads: int | None = None
    batch_size: int | None = None
    clock: str = "seconds"
    references: list[str] | None = None


@contextmanager
def worker(checkout: Path, variant: str | None) -> Iterator[Worker]:
    """Start a process that decodes with the release in `checkout`, by one variant or its own
    choice, and end it."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), **PEER_LIMITS.get(variant or "", {}),
                   **({FORCED_VARIANT: variant} if variant else {})}
    with subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, env=environment,
                          cwd=checkout) as process:
        def answer(**question: object) -> Values:
            line = ""
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write(json.dumps(question) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            require(bool(line), f"the process that decodes in {checkout} ended too early; its "
                    "message is above")
            found: Values = json.loads(line)
            return found

        try:
            yield answer
        finally:
            process.kill()


def measure(case: Case, workers: dict[str, Worker]) -> Values:
    """Return the shortest answer of every worker, by way."""
    best: Values = {way: {} for way in case.ways}
    for number in range(0 if case.warm_up else 1, case.rounds + 1):
        inputs = case.inputs if number else case.inputs[: case.warm_up]
        for way, (engine, given) in case.ways.items():
            for label, decode in workers.items():
                found = decode(checkpoint=case.checkpoint, engine=engine, given=given,
                               inputs=inputs, at_once=case.at_once, threads=case.threads,
                               batch_size=case.batch_size)
                texts, known = found.pop("texts", None), best[way].get(label)
                if number and (known is None or found[case.clock] < known[case.clock]):
                    score = ({"bleu": bleu(texts, case.references)["score"]} if case.references
                             else {})
                    best[way][label] = {**found, **score, "inputs": len(inputs)}
    return best


def by_engine(ways: dict[str, Values],
              engines: Iterable[str] = ENGINES) -> dict[str, tuple[str, Values]]:
    """Return every way with every engine, by a name of both."""
    return {f"{engine}, {way}": (engine, given)
            for engine in engines for way, given in ways.items()}


def face_rows(faces: list[Any], rounds: int) -> Iterator[tuple[str, Case]]:
    """Return what is measured of single faces, by name: both stages, and the first stage."""
    for checkpoint in (DEFAULT_CASCADE, DEFAULT_CHECKPOINT):
        yield f"faces, {checkpoint}", Case(checkpoint, by_engine(WAYS), faces[:4], 1, rounds)


def batch_rows(faces: list[Any], rounds: int) -> Iterator[tuple[str, Case]]:
    """Return what is measured of a batch of faces, by name: the default engine, since float32 would
    take minutes."""
    ways = {way: WAYS[way] for way in ("greedy", "exact, the default", "epsilon 2")}
    yield "batch", Case(DEFAULT_CASCADE, by_engine(ways, ENGINES[:1]), faces, len(faces),
                        min(rounds, 2), 0)


def text_rows(lines: list[str], references: list[str], rounds: int) -> Iterator[tuple[str, Case]]:
    """Return what is measured of captions, by name: one at a time and together, on one thread."""
    ways = by_engine(CAPTIONS) | {f"{PEER}{kind}, greedy": (f"{PEER}{kind}", {})
                                  for kind in ("int8", "float32")}
    alone = Case(DEFAULT_TRANSLATOR, ways, lines[:ONE_BY_ONE], 1, 2 * rounds, threads=1,
                 clock="cpu")
    yield "text, alone", alone
    yield "text, together", replace(alone, inputs=lines, at_once=len(lines), warm_up=BATCH_SIZE,
                                    batch_size=BATCH_SIZE, references=references)


def never_slower_rows(faces: list[Any], lines: list[str],
                      rounds: int) -> Iterator[tuple[str, Case]]:
    """Return the cases in which the default should not be slower than one token per step, by
    name."""
    for engine in ENGINES:
        ways = {"greedy": (engine, GREEDY), "default": (engine, {})}
        for task, sizes in BATCHES.items():
            checkpoint, inputs = ((DEFAULT_CHECKPOINT, faces) if task == "faces"
                                  else (DEFAULT_TRANSLATOR, lines))
            for size in sizes:
                # A long decode varies less, and two of them have warmed up the second.
                few = task == "captions" or size <= BATCHES[task][1]
                yield f"never-slower, {engine}, {task}, {size}", Case(
                    checkpoint, ways, inputs[: max(size, LEAST[task])], size,
                    2 * rounds if few else 2, size if few else 0, 1, clock="cpu")


def peers_values(faces: Any) -> Values:  # noqa: ANN401 -- pixels
    """Return faces per second, one at a time, of the default engine, of `plain` and of
    transformers."""
    from peers import generated_token  # an optional dependency

    found, rounds = list[Values](), {ENGINES[0]: 3, "plain": 1}
    for engine, repeats in rounds.items():
        work = image_workload(Upscaler.load(DEFAULT_CHECKPOINT, "cpu", engine), faces)
        heads = work.pipeline.model_config.prediction_heads
        names = {"greedy": "greedy", "exact": f"exact, k = {heads}",
                 "epsilon 2": f"epsilon 2, k = {heads}"}
        made = decode_costs(replace(work, variants={way: work.variants[name]
                                                    for way, name in names.items()}), 1, repeats)
        found.append({"engine": engine, **{row["way"]: row["images_per_second"] for row in made}})
    seconds = generated_token(work.pipeline) * work.pipeline.model_config.target_length
    return {"rows": [*found, {"engine": "transformers, GPT-2 of this size",
                              "greedy": 1 / seconds}]}


def rows(only: list[str], faces: Path, text: Path, rounds: int,
         workers: dict[str, Worker]) -> Iterator[Row]:
    """Return what is measured of the parts `only`."""
    pictures = read_faces(faces, face_task(DEFAULT_CASCADE), "valid", BATCHES["faces"][-1]).lr
    pairs, settings = read_pairs(text, ("en", "de"), TOGETHER), {"commit": commit()}
    sources, lines = pictures.tolist(), list(pairs.source)
    cases = {"faces": face_rows(sources, rounds), "batch": batch_rows(sources, rounds),
             "text": text_rows(lines, list(pairs.target), rounds),
             "never-slower": never_slower_rows(sources, lines, rounds)}
    for part in only:
        for name, case in cases.get(part, ()):
            yield Row(name, partial(measure, case, workers), settings)
        if part == "first-use":
            yield Row(part, first_use, settings)
        if part == "peers":
            yield Row(part, partial(peers_values, pictures), settings)


def processor_class(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, and the class of AMD's, which may have one name for several."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = dict(re.findall(r"^(vendor_id|cpu family|model)\s*: (.*)$", text, re.MULTILINE))
    if found.get("vendor_id") != "AuthenticAMD":
        return cpu_name()
    family, model = int(found["cpu family"]), int(found["model"])
    zen = {23: 2 if model >= 0x30 else 1, 25: 4 if model >> 4 in (1, 6, 7, 10) else 3,
           26: 5}.get(family)
    return cpu_name() + (f", Zen {zen}" if zen else "")


def chosen_variants(names: str) -> dict[str, str]:
    """Return the variants to measure by what they are called in tables, the fastest first.

    Raises:
        ConfigError: this processor does not run one of the `names`, which commas separate.
    """
    here = [variant.name for variant in candidates(forced_variant(), processor())]
    wanted = (names.split(",") if names
              else [name for name in here if name in (here[0], "x86-64-v3")])
    for name in wanted:
        require(name in here, f"variant {name} does not run here; those that do: {', '.join(here)}")
    return {HEADINGS[name] + ("" if name == here[0] else " forced"): name
            for name in here if name in wanted}


def main(
    faces: Faces, text: Text, output: Output,
    only: Annotated[str, typer.Option(metavar="PART,...",
                                      help="Parts to measure.")] = ",".join(PARTS),
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each; the shortest "
                                        "counts.")] = 3,
    variants: Annotated[str, typer.Option(help="Variants, separated by commas. [default: the "
                                          "fastest, and AVX2]")] = "",
    beside: Annotated[Path | None, typer.Option(help="Checkout of another release to measure in "
                                                "turns.")] = None,
    publish: Annotated[bool, typer.Option("--publish", help="Fill README and docs/ with the "
                                          "tables.")] = False,
    busy: Busy = False,
) -> None:
    """Print the tables of speed, and write their document."""
    parts = only.split(",")
    require(set(parts) <= set(PARTS), f"--only takes {', '.join(PARTS)}, not {only}")
    require(not publish or set(parts) == set(PARTS), "--publish needs all parts; leave --only out")
    if not busy:
        require_idle()
    chosen = chosen_variants(variants)
    table = Table("speed_tables", output, {
        "processor": processor_class(), "variants": chosen, "rounds": rounds, "busy": busy,
        "beside": None if beside is None else beside.name}, name="speed")
    with ExitStack() as stack:
        workers = {label: stack.enter_context(worker(ROOT, name)) for label, name in chosen.items()}
        if beside is not None:
            first = next(iter(chosen.values())) if variants else None
            workers[beside.name] = stack.enter_context(worker(beside.resolve(), first))
        table.measure(rows(parts, faces, text, rounds, workers))
    table.finish()
    if publish:
        write_results(MEASUREMENTS, {table.path.name: table.document})
        fill_pages()


if __name__ == "__main__":
    run(main)

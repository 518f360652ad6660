"""Measure the speed of upscaling by every engine of this machine, and of others' code beside it, in one process.

    python scripts/benchmark.py --data dev.npz --output benchmark
    python scripts/benchmark.py --data dev.npz --output benchmark --no-peers --device cuda

The report has, for each engine, what `superres benchmark images` measures, with its plots; and a table of peers:
Hugging Face transformers' GPT-2 of the same size (greedy with its cache, and assisted), and our network without a
cache, as the published implementation runs. Peers need the extra `peers`. Size M is a network of random weights whose
blocks are forced to accept five tokens of six.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from superres.cli.benchmark import parse_batches
from superres.config import DecodeConfig
from superres.errors import SuperresError
from superres.evaluation.benchmark import benchmark_markdown, image_workload, run_benchmark, write_benchmark
from superres.evaluation.peers import FORCED, HEADS, SIZES, compare_with_peers, random_upscaler
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import machine, require_idle
from superres.system.output import markdown_table, number_text, prepare_folder, write_result
from superres.tasks.faces import read_faces


def peers_markdown(sizes: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables of peers as Markdown."""
    parts = []
    for size, rows in sizes.items():
        cells = [[row["way"], number_text(row["tokens_per_second"], 0), number_text(row["seconds"], 3),
                  str(row["tokens"]), number_text(row["over_generate"], 2)] for row in rows]
        parts.append(f"## Size {size}\n\n" + markdown_table(
            ["way", "tokens/s", "s", "tokens", "times transformers' greedy"], cells))
    return "\n\n".join(parts) + "\n"


def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for the reports, a folder an engine, and peers.json, peers.md.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Rows decoded together.")] = "1,8,64",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds, of which medians are taken.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    peers: Annotated[bool, typer.Option(help="Measure other implementations, too.")] = True,
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if something else uses the processor.")] = False,
) -> None:
    """Write the reports of all engines and the table of peers."""
    sizes = parse_batches(batches)
    if not busy:
        require_idle()
    prepare_folder(output)
    sources = read_faces(data, "valid", max(sizes)).lr
    # What "auto" takes is the fastest that this machine has; the plain engine is everywhere.
    loaded = [Upscaler.load(checkpoint, device, engine) for engine in ("plain", "auto")]
    upscalers = {upscaler.engine: upscaler for upscaler in loaded}
    for engine, upscaler in upscalers.items():
        report = run_benchmark(image_workload(upscaler, sources), sizes, repeats)
        write_benchmark(report, output / engine)
        print(benchmark_markdown(report))
    if not peers:
        return
    config = loaded[0].model_config
    close = DecodeConfig(accept="distance", epsilon=2)
    compared = {"S": compare_with_peers(upscalers, sources[:1], close, repeats)}
    for size in list(SIZES)[1:]:
        drawn = {engine: random_upscaler(config, size, engine) for engine in upscalers}
        compared[size] = compare_with_peers(drawn, sources[:1], DecodeConfig(HEADS, min_block=FORCED), repeats)
    document = {"machine": machine(loaded[0].device), "sizes": compared}
    write_result(output / "peers.json", (json.dumps(document, indent=1) + "\n").encode())
    write_result(output / "peers.md", peers_markdown(compared).encode())
    print(peers_markdown(compared))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"benchmark: {error}")

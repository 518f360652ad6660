"""Measure the speed of upscaling by every engine of this machine, and by other implementations, in one process.

    python scripts/benchmark/engines.py --data dev.npz --output benchmark
    python scripts/benchmark/engines.py --data dev.npz --output benchmark --no-peers --device cuda

The output has the report and plots of `superres benchmark images` for each engine, and a table of peers: Hugging Face
transformers' GPT-2 of the same size (greedy with its cache, and assisted), and our network without a cache, like the
implementation of the paper. Peers need the extra `peers`. Size M is a network with random weights, whose blocks always
accept at least five of six tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from peers import FORCED, HEADS, SIZES, compare_with_peers, random_upscaler
from superres.cli.benchmark import parse_batches
from superres.config import DecodeConfig
from superres.errors import SuperresError
from superres.evaluation.benchmark import benchmark_markdown, image_workload, run_benchmark, write_benchmark
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import machine, require_idle
from superres.system.output import markdown_table, number_text, prepare_folder, write_results
from superres.system.training_lock import training_paused
from superres.tasks.face_data import read_faces


def peers_markdown(sizes: dict[str, list[dict[str, Any]]]) -> str:
    """Return the tables of peers as Markdown."""
    parts = []
    for size, rows in sizes.items():
        cells = [[row["way"], number_text(row["tokens_per_second"], 0), number_text(row["seconds"], 3),
                  str(row["tokens"]), number_text(row["over_generate"], 2)] for row in rows]
        parts.append(f"## Size {size}\n\n" + markdown_table(
            ["variant", "tokens/s", "s", "tokens", "ratio to transformers' greedy"], cells))
    return "\n\n".join(parts) + "\n"


@training_paused()
def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for a folder per engine, peers.json and peers.md.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,8,64",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the report has medians over rounds.")] = 3,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    peers: Annotated[bool, typer.Option(help="Measure other implementations, too.")] = True,
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the processor.")] = False,
) -> None:
    """Write the reports of all engines and the table of peers."""
    sizes = parse_batches(batches)
    if not busy:
        require_idle()
    prepare_folder(output)
    # "auto" is the fastest engine on this machine; the plain engine is always available.
    loaded = [Upscaler.load(checkpoint, device, engine) for engine in ("plain", "auto")]
    sources = read_faces(data, loaded[0].face_task, "valid", max(sizes)).lr
    upscalers = {upscaler.engine: upscaler for upscaler in loaded}
    for engine, upscaler in upscalers.items():
        report = run_benchmark(image_workload(upscaler, sources), sizes, repeats)
        write_benchmark(report, output / engine)
        print(benchmark_markdown(report))
    if not peers:
        return
    config = loaded[0].model_config
    blockwise = DecodeConfig(accept="distance", epsilon=2)
    compared = {"S": compare_with_peers(upscalers, sources[:1], blockwise, repeats)}
    for size in list(SIZES)[1:]:
        random = {engine: random_upscaler(config, size, engine) for engine in upscalers}
        compared[size] = compare_with_peers(random, sources[:1], DecodeConfig(HEADS, min_block=FORCED), repeats)
    table = peers_markdown(compared)
    document = {"machine": machine(loaded[0].device), "sizes": compared}
    write_results(output, {"peers.json": document, "peers.md": table})
    print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"engines: {error}")

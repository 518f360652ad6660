"""What is fuzzed: readers of files that users get from elsewhere. Nothing but the documented errors
may come out."""

from __future__ import annotations

import atexit
import io
import itertools
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from hostile_archives import claims
from PIL import Image

from decodes import decode
from superres.batch.inputs import find_inputs
from superres.batch.opening import open_inputs
from superres.batch.rows import Journal, Row, merge, read_rows
from superres.checkpoint import (
    CONFIG,
    TRAINING,
    WEIGHTS,
    load_checkpoint,
    read_checkpoint,
    read_training,
    save_checkpoint,
)
from superres.config import DecodeConfig, ModelConfig
from superres.decoding.proposers.ngram_table import NgramTable, count_ngrams
from superres.errors import CheckpointError, ConfigError, InvalidInputError, ScoresError
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel
from superres.pictures.colour import SRGB, matrix_profile
from superres.pictures.read import read_picture
from superres.tasks.translation import Codec, train_vocabulary
from superres.training.recipes import read_recipe
from tests.pictures.helpers import TIFF_DEFLATE, chunk, exif, png, segment, tiff

LEAST = 8
FOLDER = Path(tempfile.mkdtemp(prefix="superres-fuzz-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
FILES = CONFIG, WEIGHTS, TRAINING
KINDS = (".zip", ".npz", ".tar", ".tar.gz")


def one_line(error: Exception) -> None:
    """Errors are one line for people, and not a long one."""
    assert str(error).strip()
    assert "\n" not in str(error)
    assert len(str(error)) < 2000


def image(data: bytes) -> None:
    """A picture is RGB and at least LEAST pixels wide and high, or refused."""
    try:
        picture = read_picture(io.BytesIO(data), "input", max_pixels=1_000_000, least=LEAST)
    except InvalidInputError as error:
        one_line(error)
        return
    height, width, channels = picture.rgb.shape
    assert channels == 3
    assert min(height, width) >= LEAST
    assert picture.alpha is None or picture.alpha.shape == (height, width)


def archive(data: bytes) -> None:
    """The first byte chooses the kind of archive; each job has a picture's content or an error."""
    path = FOLDER / f"archive{KINDS[data[0] % len(KINDS) if data else 0]}"
    path.write_bytes(data[1:])
    jobs = list(find_inputs([str(path)], [], False, True, FOLDER / "out"))
    for job in jobs:
        assert job.error is not None or (job.name and ".." not in job.name.split("/")
                                         and job.name[0] != "/")
    opened = list(open_inputs(jobs))
    assert [job for job, _ in opened] == jobs
    for _, content in opened:
        if isinstance(content, InvalidInputError):
            one_line(content)


def manifest(data: bytes) -> None:
    """A manifest is read to its last whole line, or refused; what is read can be written, merged
    and read again."""
    path = FOLDER / "manifest.jsonl"
    path.write_bytes(data)
    try:
        with open(path, "rb") as file:
            rows = [row for _, row in read_rows(file, path)]
        opened = Journal(path)
        assert list(map(Row.line, opened.rows())) == list(map(Row.line, rows))
    except InvalidInputError as error:
        one_line(error)
        return
    try:
        opened.append([Row("b", "/out/b.png", "ok")])
        opened.sort(lambda inputs: np.full(len(inputs), -1))
    finally:
        opened.close()
    rows.append(Row("b", "/out/b.png", "ok"))
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.origin)]
    last_group = {group[0].input: number for number, group in enumerate(groups)}
    last = {row.key: (row, number) for number, group in enumerate(groups) for row in group}
    last = {key: row for key, (row, number) in last.items() if row.status == "ok"
            or last_group[row.input] == number}
    with open(path, "rb") as file:
        found = [row for _, row in read_rows(file, path)]
    # As text: a number that is not one differs from itself.
    assert {row.key: row.line() for row in found} == {key: row.line() for key, row in last.items()}
    assert sum(merge([path], FOLDER / "merged.jsonl").values()) == len(last)


def recipe(data: bytes) -> None:
    """A recipe names folders below that of its run, or is refused."""
    path = FOLDER / "recipe.json"
    path.write_bytes(data)
    try:
        found = read_recipe(path)
    except (ConfigError, CheckpointError) as error:
        one_line(error)
        return
    for stage in found:
        assert (FOLDER / stage.name).resolve().parent == FOLDER.resolve()


def checkpoint(data: bytes) -> None:
    """The first byte chooses the file that is damaged: config.json, the weights, or
    training.jsonl."""
    folder = FOLDER / "checkpoint"
    if not folder.is_dir():
        write_checkpoint(folder)
    path = folder / FILES[data[0] % len(FILES) if data else 0]
    good = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        for read in (load_checkpoint, read_training,
                     lambda folder: read_checkpoint(folder).decode_default("cpu")):
            try:
                made = read(folder)
            except CheckpointError as error:
                one_line(error)
            else:
                if path.name == WEIGHTS and read is load_checkpoint:
                    decoded(made)
    finally:
        path.write_bytes(good)


def decoded(model: EncoderDecoder) -> None:
    """Weights that are read decode to tokens in range, or their scores are refused."""
    source = torch.zeros(1, model.config.source_length, dtype=torch.int64)
    for options in (DecodeConfig(), DecodeConfig(temperature=0.5, sampling="speculative")):
        try:
            tokens = decode(StepModel(model), source, options).tokens
        except ScoresError as error:
            one_line(error)
        else:
            assert 0 <= int(tokens.min()) <= int(tokens.max()) < model.config.vocabulary


def ngrams(data: bytes) -> None:
    """Counts of n-grams belong together, or are refused."""
    path = FOLDER / "ngrams.safetensors"
    path.write_bytes(data)
    try:
        table = NgramTable.read(path)
    except CheckpointError as error:
        one_line(error)
        return
    assert len(table.keys) == len(table.tokens) > 0
    assert 0 <= table.tokens.min() <= table.tokens.max() < table.vocabulary
    path.write_bytes(table.to_bytes())
    again = NgramTable.read(path)
    assert (again.order, again.vocabulary, again.channels) == (table.order, table.vocabulary,
                                                               table.channels)


def vocabulary(data: bytes) -> None:
    """A SentencePiece model splits text into tokens in range and joins them again, or is
    refused."""
    try:
        codec = Codec(data, length=64)
    except CheckpointError as error:
        one_line(error)
        return
    lines = ["A dog runs.", "\ufb01 \u00bd \u2167 \u30ab\uff9e \u2026 \u3000 \u0301 \U0001f600"]
    for row in codec.split(lines):
        assert all(0 <= token < codec.size for token in row)
        codec.decode([row])
        codec.surfaces(row)


def write_checkpoint(folder: Path) -> None:
    """Write a small checkpoint."""
    config = ModelConfig(width=4, filter_size=4, attention_heads=1, encoder_layers=0,
                         decoder_layers=1, vocabulary=4, source_shape=(2, 2, 3),
                         target_shape=(4, 4, 3), conditioning_blocks=0, conditioning_width=4,
                         attention_block_length=8, cross_attention=False)
    save_checkpoint(EncoderDecoder(config), folder, training=[{"stage": "base"}])


def seeds(name: str) -> list[bytes]:
    """Return inputs to begin with; they are made, not kept."""
    if name == "image":
        found = []
        for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"):
            buffer = io.BytesIO()
            Image.linear_gradient("L").resize((9, 8)).convert("RGB").save(buffer, kind)
            found.append(buffer.getvalue())
        samples = np.arange(9 * 8 * 4).reshape(8, 9, 4) * 200
        found += [tiff(samples, 16, 2, extra=(1,), planes=planes, compression=TIFF_DEFLATE)
                  for planes in (False, True)]
        profile = zlib.compress(matrix_profile(SRGB, (1.0,)))
        turn = chunk(b"eXIf", exif((0x0112, 3, 1, b"\0\6\0\0")))
        found.append(png(samples, 16, 6, chunk(b"iCCP", b"a\0\0" + profile), turn))
        return [*found, segment(found[1], 0xE1, b"Exif\0\0" + exif((0x8769, 4, 1, b"\0\0\0\x08")))]
    if name == "manifest":
        rows = [Row("a", "/out/a.png", "ok", tokens=3, config={"epsilon": [1]}),
                Row("c", "", "failed", "why")]
        return [b"".join(row.line() for row in rows), rows[0].line()[:-9]]
    if name == "recipe":
        stages = [{"name": "a"}, {"name": "b", "start": "a", "stage": "heads", "clip": None}]
        return [json.dumps({"preset": "tiny", "prediction_heads": 3, "steps": 1,
                            "stages": stages}).encode()]
    if name == "checkpoint":
        write_checkpoint(FOLDER / "seed")
        return [bytes([number]) + (FOLDER / "seed" / file).read_bytes() for number,
                file in enumerate(FILES)]
    if name == "ngrams":
        rows = [np.arange(9) % 4, np.arange(9) % 3]
        return [count_ngrams(rows, NgramTable(*sizes)).to_bytes() for sizes in ((1, 4, 1),
                                                                                (3, 4, 3))]
    if name == "vocabulary":
        return [train_vocabulary(["a dog runs", "ein Hund rennt"] * 3, 280)]
    return _archive_seeds()


def _archive_seeds() -> list[bytes]:
    buffers = [io.BytesIO() for _ in range(4)]
    with zipfile.ZipFile(buffers[0], "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("x/a.png", seeds("image")[0])
    np.savez(buffers[1], lr=np.zeros((2, 8, 8, 3), np.uint8))
    for buffer, mode in ((buffers[2], "w"), (buffers[3], "w:gz")):
        with tarfile.open(fileobj=buffer, mode=mode) as tar:
            info = tarfile.TarInfo("x/a.png")
            info.size = 5
            tar.addfile(info, io.BytesIO(b"12345"))
    claimed = [bytes([KINDS.index(kind)]) + content for kind, content in claims()]
    return [*(bytes([number]) + buffer.getvalue() for number, buffer in enumerate(buffers)),
            *claimed]


TARGETS = {"image": image, "archive": archive, "manifest": manifest, "recipe": recipe,
           "checkpoint": checkpoint, "ngrams": ngrams, "vocabulary": vocabulary}
os.environ.setdefault("OMP_NUM_THREADS", "1")

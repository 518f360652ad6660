"""The weights of an upscaler as the engine in a browser reads them: one file for all stages.

A stage is an image (see `superres.native.memory_image`) of a native session of one row and its
decoder, before the first step. `superres/native/browser/superres.js` reads the file and decodes.
Uncompressed, it has the length of a JSON header (four bytes), the header, and the body: per stage
the data of the image, and then numbers, float32, from which the browser computes what takes more
bytes: the position signals, and the transformed weights of convolutions. The body is in four
planes, the first bytes of each four, then the second ones and so on, which compresses better.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any, cast

import numpy as np

from superres.config import DecodeConfig, ModelConfig
from superres.config.tables import SOURCE_MULTIPLE, position_signal
from superres.decoding.algorithm import Algorithm
from superres.decoding.block_size import paying_size
from superres.decoding.confidence import usual
from superres.errors import ConfigError
from superres.interfaces import Float32, Int64
from superres.native import abi
from superres.native.arrays import zeros
from superres.native.build import wasm_file
from superres.native.decoder import NativeDecoder
from superres.native.encoder import POINTS, convolutions_of, transform
from superres.native.engine import NativeEngine
from superres.native.memory_image import MemoryImage, offset_of
from superres.native.variants import SELF_TEST
from superres.pictures.mark import marked
from superres.pipeline.choose import record_for
from superres.pipeline.upscaler import Upscaler
from superres.system.output import write_result
from superres.system.progress import say, track

FORMAT = 2
ITERATIONS = 64
"""Largest number of iterations of one call of the engine; their record has its room in the
image."""
FIELDS = {"session": ("size.width",), "sampler": ("seed",),
          "loop": ("block_size", "rule", "bound", "sampling")}
"""The fields of each structure that differ between decodes."""
NUMBERS = {"loop": ("position", "limit", "store", "proposals"), "sampler": ("keys", "temperature"),
           "limits": ("bounds",), "near": ("deviation",), "report": ("not_finite",)}
"""The fields of each structure that point to numbers which a decode begins with, or ends with."""


PRODUCTS = (len(POINTS) + 1) ** 2
"""Products of a convolution."""
SCRIPTS = Path(abi.__file__).with_name("browser")
"""Folder of the engine's JavaScript, which is an npm package, too."""
MODULES = "wasm32", "wasm32-relaxed"


def write_engine(folder: Path, upscaler: Upscaler) -> int:
    """Write the engine and the weights for an upscaler of the engine "native-int8" into `folder`.

    Returns the number of bytes of the weights and of the larger module: a browser loads one of
    both. Raises NativeUnavailable if the modules cannot be compiled, and as `packed_weights`.
    """
    say("preparing the engine for browsers")
    modules = {name: wasm_file(name) for name in track(MODULES, "engine for browsers", "modules")}
    say("packing the weights")
    weights = packed_weights(upscaler)
    files = {"weights.bin": weights, **{f"superres-{name}.wasm": path.read_bytes() for name,
                                        path in modules.items()},
             **{path.name: path.read_bytes() for path in SCRIPTS.glob("*.[jt]s")}}
    for name, content in files.items():
        write_result(folder / name, content)
    return len(weights) + max(path.stat().st_size for path in modules.values())


def packed_weights(upscaler: Upscaler) -> bytes:
    """Return the file of the weights of an upscaler of the engine "native-int8".

    Raises ConfigError if the engine in a browser does not know a network of its kind.
    """
    stages, images, whole = list[dict[str, Any]](), list[bytes](), upscaler.face_task
    stage: Upscaler | None = upscaler
    while stage is not None:
        header, data = stage_image(stage.last or stage)
        header["file"] = len(data)
        header["coarse"] = 0 if stage.first is None else whole.source
        stages.insert(0, header)
        images.insert(0, data)
        stage = stage.first
    body = np.frombuffer(b"".join(images), np.uint8).reshape(-1, 4).T.tobytes()
    about = {"format": FORMAT, "checkpoint": upscaler.name, "revision": upscaler.revision,
             "abi": abi.DIGEST, "digest": hashlib.sha256(body).hexdigest(),
             "mark": marked().decode(), "iterations": ITERATIONS, "rules": abi.ENUMS["Rule"],
             "transform": transform().tolist(), "self_test": f"{SELF_TEST:016x}", "stages": stages}
    text = json.dumps(about).encode()
    return gzip.compress(struct.pack("<I", len(text)) + text + body, 9, mtime=0)


def stage_image(stage: Upscaler) -> tuple[dict[str, Any], bytes]:
    """Return what the header says of a stage, and its part of the body."""
    engine, config, task = native_engine(stage), stage.model_config, stage.network_task
    decoder = started(stage, engine)
    encoder, session, loop = engine.encoder, decoder.session, decoder.loop
    length, packed = config.source_length, engine.packed.tensors
    lengths = zeros((1,), np.int64) + length
    # Memory that a decode writes first, and what is computed when the file is loaded, is not in the
    # file.
    source, record = (zeros(shape, np.int64)
                      for shape in ((length,), (ITERATIONS, loop.capacity + 2)))
    states = zeros((length + -length % SOURCE_MULTIPLE, config.width), np.float32)
    products = encoder.products[: PRODUCTS * (1 + 2 * encoder.blocks)]
    computed = [encoder.source_signal, encoder.signal,
                *(part for one in products for part in (one.weight, one.scale))]
    image = MemoryImage([packed, vars(stage.limits), lengths], [
        vars(session), decoder.kept, decoder.rows, source, record, states,
        [array for array in packed if isinstance(array, np.ndarray)
         and array.ctypes.data in {*computed}]])
    structures = {"session": session.session, "loop": loop, "encoder": encoder,
                  "sampler": loop.sampling.contents,
                  "encoded": encoded_of(decoder, lengths, states)}
    at = {name: image.add(structure) for name, structure in structures.items()}
    at |= {field.rpartition(".")[2]: at[name] + offset_of(type(structures[name]), field)
           for name, fields in FIELDS.items() for field in fields}
    structures |= {"limits": loop.limits, "near": session.session.neighbourhood,
                   "report": session.session.report}
    at |= {name: image.at(getattr(structures[owner], name)) for owner,
           names in NUMBERS.items() for name in names}
    at |= {"source": image.at(source.ctypes.data), "record": image.at(record.ctypes.data)}
    places = list(map(image.at, computed))
    data, size = image.finished()
    convolutions = convolutions_of(engine.network.arrays.__getitem__, config)
    about = {"source": task.source, "target": task.target, "heads": config.prediction_heads,
             "block": exact_block(stage), "width": config.width,
             "at": {name: image.place(place) for name, place in at.items()},
             "computed": list(map(image.place, places)),
             "convolutions": [weight.shape[:2] for weight in convolutions], "links": image.links,
             "bytes": len(data), "memory": size}
    numbers = [*signals_of(config), *convolutions]
    return about, data + b"".join(part.astype(np.float32).tobytes() for part in numbers)


def exact_block(stage: Upscaler) -> int:
    """Return the block size of exact acceptance that is the fastest by the recorded costs of
    WebAssembly."""
    record = record_for(stage.costs, stage.engine, MODULES[-1]) or stage.scoring.costs
    costs, heads = record.of(1), stage.model_config.prediction_heads
    passing = usual(stage.block_sizes.confidence, DecodeConfig())
    return paying_size(costs, costs.up_to(heads), 1, passing, stage.model_config.target_length)


def native_engine(stage: Upscaler) -> NativeEngine:
    """Return the engine of a stage; raise ConfigError if that in a browser does not know a network
    of its kind."""
    engine, config = stage.scoring, stage.model_config
    if (isinstance(engine, NativeEngine) and engine.name == "native-int8"
        and config.aligned_conditioning
        and config.numeric_neighbourhood and not config.cross_attention
        and stage.default.consistent):
        return engine
    raise ConfigError("the engine in a browser does not know a network such as that of "
                      f"{stage.name}, or not with the engine {engine.name}; choose another "
                      "checkpoint, and the engine native-int8")


def signals_of(config: ModelConfig) -> list[Float32]:
    """Return the parts of the position signals of source and target: those of rows, and those
    within a row."""
    parts = list[Float32]()
    for shape in (config.source_shape, config.target_shape):
        signal, length = position_signal(shape, config.width), math.prod(shape[1:])
        half = config.width // 2
        parts += [signal[::length, :half], signal[:length, half:]]
    return parts


def started(stage: Upscaler, engine: NativeEngine) -> NativeDecoder:
    """Return a decoder of one row of a stage, whose options can be any that the page offers."""
    heads = stage.model_config.prediction_heads
    options = DecodeConfig(block_size=heads, consistent=True, temperature=1.0,
                           nucleus=stage.default.nucleus)
    source = np.zeros((1, stage.model_config.source_length), np.int64)
    return cast(NativeDecoder, Algorithm(engine, options, limits=stage.limits).start(source, heads))


def encoded_of(decoder: NativeDecoder, lengths: Int64, states: Float32) -> abi.CEncoded:
    """Return where the encoder writes: to what the session of a decoder reads, and to `states`."""
    session = decoder.session.session
    return abi.CEncoded(
        states=states.ctypes.data, position_table=session.input.position_table,
        head_table=session.heads.conditioning, estimate=session.ordinal.estimate,
        residual_sum=session.neighbourhood.residual_sum, stride=int(lengths[0]),
        positions=len(states), lengths=lengths.ctypes.data)

"""The engine `triton` has the plain decoder's tokens and traces: interpreted, or compiled where
there is a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from fakes import TINY, limits_of, random_model, random_tokens

from tests.proofs.test_refill import assert_equal, refilled

# read when Triton is imported
os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"
pytest.importorskip("triton")

import triton
import triton.language as tl

from decodes import algorithm_of, decode
from superres.config import DecodeConfig
from superres.decoding import reference
from superres.decoding.loop import Loop
from superres.decoding.plain.limited import LimitedModel
from superres.errors import ConfigError, ScoresError
from superres.gpu import kernel, launch, model, speculative
from superres.gpu.model import TritonModel
from superres.gpu.sum_order import sum_orders
from superres.gpu.weights import Tuning, filling, pack
from superres.nn.torch_model import StepModel
from superres.nn.weights import network_of
from superres.pipeline.choose import engine_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = replace(
    TINY, source_shape=(1, 1, 3), target_shape=(2, 2, 3), attention_block_length=4,
    prediction_heads=8, head_layer="sequential", free_scores=False, ordinal_shape="hyperbolic",
    cell_remainder=True)
NETWORKS = {
    "one layer": CONFIG,
    # Widths that are no powers of two, as those of the second stage.
    "padded": replace(CONFIG, width=48, attention_heads=3, filter_size=96, head_filter_size=48,
                      decoder_layers=2),
    "plain heads": replace(CONFIG, head_layer="per-head", ordinal_shape="laplace",
                           cell_remainder=False),
    "no conditioning": replace(CONFIG, aligned_conditioning=False),
    "keys per pixel": replace(CONFIG, attention_keys="pixels", attention_block_length=1),
    "one head": replace(CONFIG, prediction_heads=1),
}
WAYS = {
    "greedy": DecodeConfig(1), "exact": DecodeConfig(8),
    "distance": DecodeConfig(5, accept="distance", epsilon=40),
    "top-k": DecodeConfig(4, accept="top-k", top_k=60), "minimum": DecodeConfig(6, min_block=3),
    "sampled": DecodeConfig(3, temperature=(0.9, 0.5, 0.7), seed=2**40 + 5),
    "nucleus": DecodeConfig(2, temperature=0.9, nucleus=0.9, accept="distance", epsilon=40,
                            min_block=2),
    "speculative": DecodeConfig(4, temperature=0.9, sampling="speculative"),
    "filtered": DecodeConfig(3, temperature=(0.9, 1.1, 1.0), sampling="speculative", nucleus=0.9,
                             sample_top_k=90),
    "likeliest": DecodeConfig(2, temperature=0.9, sample_top_k=30, accept="top-k", top_k=9),
}


def models(config=CONFIG, limited=False, seed=0, tuning=None):
    """Return the engine and the plain one of the same network."""
    network = random_model(config, seed, torch.float32).to(DEVICE)
    both = TritonModel(network, tuning=tuning), StepModel(network)
    if not limited:
        return both
    return [LimitedModel(model, limits_of(config)) for model in both]


def sources(config, rows, seed=0):
    return random_tokens(config, rows, seed)[0]


@torch.inference_mode()
def begun(model, source, options, tokens):
    """Return a loop that has decoded the first `tokens` tokens, in two launches."""
    loop = Loop(algorithm_of(model, options).start(source.numpy(), options.block_size))
    loop.decoder.plain.state.limit.fill_(tokens)
    for count in (2, *[16] * tokens):
        loop.run(0 if loop.done() else count)
    return loop


def tokens_of(loop, count):
    """Return the first `count` tokens of all rows."""
    return loop.decoder.plain.state.tokens[:, :count]


def assert_same(found, expected):
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert_same_traces(found.traces, expected.traces)


def assert_same_traces(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.positions, one.accepted) == (other.positions, other.accepted)
        assert one.proposed.tolist() == other.proposed.tolist()


@pytest.mark.parametrize(("way", "limited"), [*((way, True) for way in WAYS), ("exact", False),
                                              ("sampled", False)])
def test_decodes_as_the_plain_engine(way, limited):
    source = sources(CONFIG, 1 if WAYS[way].is_sampling else 2)
    found, expected = (begun(model, source, WAYS[way], 4) for model in models(limited=limited))
    assert found.decoder.compiled
    assert not expected.decoder.compiled
    assert torch.equal(tokens_of(found, 4), tokens_of(expected, 4))
    assert_same_traces(found.recorder.rows(), expected.recorder.rows())


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_decodes_as_the_reference(network):
    config = NETWORKS[network]
    engine, plain = models(config, limited=True, seed=1)
    source, size = sources(config, 1, seed=1), min(4, config.prediction_heads)
    steps = reference.decode(plain, source.to(DEVICE), DecodeConfig(size), size, length=6)
    loop = begun(engine, source, DecodeConfig(size), 6)
    assert tokens_of(loop, 6)[0].tolist() == reference.tokens_of(steps)
    assert loop.recorder.rows()[0].accepted == [step.accepted for step in steps]


def test_blocks_have_the_tokens_of_single_steps_at_every_size_and_batch():
    engine, _ = models()
    source = sources(CONFIG, 2, seed=2)
    expected, blocks, alone = (tokens_of(begun(engine, rows, DecodeConfig(size), 6), 6)
                               for rows, size in ((source, 1), (source, 3), (source[1:], 8)))
    assert torch.equal(blocks, expected)
    assert torch.equal(alone, expected[1:])


@pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter has no bfloat16")
def test_bfloat16_blocks_have_the_tokens_of_single_steps():
    network = random_model(CONFIG, dtype=torch.float32).to(DEVICE)
    engine, source = TritonModel(network, half=True), sources(CONFIG, 3)
    count = filling(engine.device)
    many = source.repeat(count, 1)  # two rows per program
    expected, blocks, alone, filled = (
        tokens_of(begun(engine, rows, DecodeConfig(size), 12), 12)
        for rows, size in ((source, 1), (source, 5), (source[1:2], 8), (many, 5)))
    assert torch.equal(blocks, expected)
    assert torch.equal(alone, expected[1:2])
    assert torch.equal(filled, expected.repeat(count, 1))


@pytest.mark.filterwarnings("error")  # numbers from outside a tensor would overflow
@pytest.mark.parametrize("way", ["distance", "speculative"])
def test_several_rows_of_a_program_end_by_themselves(way):
    engine, plain = models(tuning=Tuning(rows=2))
    source, options = sources(CONFIG, 3, seed=3), WAYS[way]  # the last program has one row
    assert_same(decode(engine, source, options), decode(plain, source, options))


def test_the_ring_of_keys_wraps_around():
    config = replace(CONFIG, source_shape=(2, 2, 3), target_shape=(4, 4, 3),
                     attention_block_length=4)
    engine, plain = models(config, tuning=Tuning(chunk=16))
    source, options = sources(config, 1), DecodeConfig(7, accept="distance", epsilon=200)
    with torch.inference_mode():
        assert engine.session(source.to(DEVICE), 5).cache.slots < config.target_length
    assert_same(decode(engine, source, options), decode(plain, source, options))


@pytest.mark.parametrize("options", [DecodeConfig(8, accept="distance", epsilon=200),
                                     WAYS["speculative"]])
def test_rows_are_refilled_and_kept(options):
    engine, plain = models()
    source = sources(CONFIG, 4, seed=4)
    finished, stream = refilled(engine, source, options, 2, ready=[1, 0, 1])
    assert stream.loop.decoder.compiled
    assert_equal(finished, plain, source, options)


@pytest.mark.parametrize("options", [
    DecodeConfig(4, proposer="jacobi"), DecodeConfig(4, proposer="lookahead")])
def test_what_the_kernel_does_not_do_is_left_to_the_plain_decoder(options):
    engine, plain = models()
    source = sources(CONFIG, 1)
    assert_same(decode(engine, source, options), decode(plain, source, options))


@pytest.mark.parametrize("network", ["padded", "no conditioning"])
def test_the_rows_of_a_batch_have_the_memory_that_is_reckoned_with(network):
    engine, _ = models(NETWORKS[network])
    rows, size = 6, 8
    decoder = algorithm_of(engine, DecodeConfig(size)).start(sources(CONFIG, rows).numpy(), size)
    held = [*decoder.plain.session.row_state(),
            *decoder.decoder.tensors[: -len(engine.weights.tensors)]]
    found = sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
                 for one in held}.values())
    record = engine.length * rows * 8 * (2 + size)  # of a decode that accepts one token at a time
    with torch.inference_mode():
        session = engine.session(sources(CONFIG, 1).to(DEVICE), size)
    own = sum(tensor.nbytes for tensor in session.row_state())
    assert found + record <= rows * (own + engine.row_bytes(size, True)) + 4096
    assert (engine.row_bytes(size, True) < engine.row_bytes(size, False)
            == StepModel.row_bytes(engine, size, False))


def test_scores_that_are_not_finite_are_an_error():
    engine, _ = models()
    engine.weights.tensors[0].fill_(float("nan"))  # the embedding
    with pytest.raises(ScoresError):
        decode(engine, sources(CONFIG, 1), DecodeConfig(4))


def test_the_engine_is_chosen_by_name_and_tested(monkeypatch, caplog):
    network = network_of(random_model(CONFIG, dtype=torch.float32))
    assert engine_of(network, device=DEVICE, engine="triton").name == "triton"
    monkeypatch.setattr(TritonModel, "decoder", lambda model, plain: None)
    assert engine_of(network, device=DEVICE, engine="triton").name == "plain"
    assert ("since triton does not work here: its kernel does not decode with this "
            "network" in caplog.text)


def test_a_kernel_whose_tokens_differ_is_not_used(monkeypatch, caplog):
    def damaged(*arguments):
        weights = pack(*arguments)
        weights.tensors[3][: weights.sizes["D"] ** 2].zero_()  # the queries of the first layer
        return weights

    monkeypatch.setattr(model, "pack", damaged)
    network = network_of(random_model(CONFIG, dtype=torch.float32))
    assert engine_of(network, device=DEVICE, engine="triton").name == "plain"
    found = re.search(r"since triton does not work here: its test decoded (\[.*?\]), not (\[.*?\])",
                      caplog.text)
    assert found is not None
    assert found[1] != found[2]


@triton.jit
def no_noise(seed, key, position, V: tl.constexpr):
    return tl.zeros([position.shape[0], V], tl.float32)


@triton.jit
def one_half(seed, key, position, number, PURPOSE: tl.constexpr):
    return tl.full(position.shape, 0.5, tl.float64)


@triton.jit
def high_limits(earlier, bounds, tokens, target, until, T: tl.constexpr, V: tl.constexpr,
                E: tl.constexpr):
    return target * 0 + (V - 9), target * 0 + V


@triton.jit
def first_row_only(scores, block, place, position, size, missing, column, real, q, q_totals,
                   entries, seed, key, V: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr):
    accepted, following = verify(scores, block, place, position, size, missing, column, real, q,
                                 q_totals, entries, seed, key, V, ROWS, W)
    return accepted, tl.where(tl.arange(0, ROWS * W) < W, following, 0)


verify = speculative.verify


@pytest.mark.slow
@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize(("module", "name", "wrong", "options", "limited", "rows", "half"), [
    (kernel, "gumbel", no_noise, WAYS["sampled"], False, 1, False),
    (kernel, "gumbel", no_noise, WAYS["sampled"], False, 1, True),
    (speculative, "uniform", one_half, WAYS["speculative"], False, 1, False),
    (kernel, "limits", high_limits, DecodeConfig(2), True, 1, False),
    (kernel, "limits", high_limits, DecodeConfig(2), True, 1, True),
    (kernel, "verify", first_row_only, WAYS["speculative"], True, 2, False),
])
def test_each_kernel_is_tested_before_its_first_use(
    module, name, wrong, options, limited, rows, half, works, monkeypatch, caplog,
):
    """Broken on purpose: the noise, the draws, the limits, and the second row of a program."""
    monkeypatch.setattr(model, "TESTED", 2)
    engine = TritonModel(random_model(CONFIG, dtype=torch.float32).to(DEVICE),
                         tuning=Tuning(rows=rows))
    engine.tested, engine.half = set(), half  # `half` compares scores
    if not works:
        monkeypatch.setattr(module, name, wrong)
    chosen = LimitedModel(engine, limits_of(CONFIG)) if limited else engine
    for _ in range(2):
        assert begun(chosen, sources(CONFIG, rows), options, 1).decoder.compiled is works
    said = "decoding with the engine plain, which is slower: its test of temperature"
    assert caplog.text.count(said) == caplog.text.count("plain") == 1 - works


def test_settings_that_the_kernel_does_not_do_are_named_once(caplog):
    engine, _ = models()
    for _ in range(2):
        begun(engine, sources(CONFIG, 1), DecodeConfig(2, proposer="jacobi"), 2)
    assert caplog.text.count("decoding with the engine plain, which is slower: triton does not "
                             "decode with proposer jacobi") == 1


def test_networks_and_devices_that_the_kernel_does_not_know_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="norms before the layers only; choose plain"):
        engine_of(network_of(random_model(replace(CONFIG, attention="causal"))), engine="triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="runs on a GPU, not on cpu"):
        engine_of(network_of(random_model(CONFIG)), engine="triton")


LAYOUTS = """
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], \
order = [1, 0]}>
#linear = #ttg.linear<{register = [[0, 0, 8], [1, 0, 0]], lane = [[0, 1, 0], [0, 0, 2]], \
warp = [], block = []}>
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 4], \
instrShape = [16, 8]}>
"""
REDUCED = """ %x = "tt.reduce"(%y) <{axis = AXIS : i32}> ({
  ^bb0(%a: KIND loc("a"), %b: KIND loc("b")):
    %c = arith.ADDED %a, %b : KIND loc(#loc1)
    tt.reduce.return %c : KIND loc(#loc2)
  }) : (tensor<SHAPExKIND, LAYOUT>) -> tensor<16xKIND, #other> loc(#loc3)
"""
MULTIPLIED = (
    "%z = tt.dot %a, %b, %cst_9, inputPrecision = tf32x3 : tensor<16x64xbf16, #ttg.dot_op<{opIdx = "
    "0, parent = #mma, kWidth = 2}>> * tensor<64x8xbf16, #ttg.dot_op<{opIdx = 1, parent = #mma, "
    "kWidth = 2}>> -> tensor<16x8xf32, #mma>")


def reduced(axis, shape, layout, added="addf", kind="f32"):
    text = REDUCED.replace("AXIS", str(axis)).replace("SHAPE", shape).replace("LAYOUT", layout)
    return text.replace("ADDED", added).replace("KIND", kind)


def test_orders_of_sums_are_read_from_the_text_of_a_kernel():
    text = LAYOUTS + reduced(1, "16x64", "#blocked") + reduced(1, "16x64", "#blocked", "addi",
                                                               "i32")
    text += reduced(1, "16x64", "#blocked", "maxnumf") + reduced(1, "16x8", "#ttg.slice<{dim = 1, "
                                                                 "parent = #linear}>")
    text += MULTIPLIED + MULTIPLIED.replace("%cst_9", "%y") + reduced(0, "16x64", "#mma",
                                                                      kind="f64")
    product = "kWidth = 2, versionMajor = 2, versionMinor = 0, instrShape = [16, 8]"
    assert sum_orders(text) == [
        "sum of 64 sizePerThread 4, threadsPerWarp 8, warpsPerCTA 1",
        "sum of 8 register [8], lane [2]", f"product of 64, tf32x3, from 0: {product}",
        f"product of 64, tf32x3, on: {product}", "sum of 16 warpsPerCTA 1, instrShape 16"]


@torch.inference_mode()
def test_rows_share_a_program_only_if_their_sums_keep_their_order():
    engine, plain = models(tuning=Tuning(rows=2))
    source, used = sources(CONFIG, 3), list[int]()
    for orders in ({2: "a", 1: "a"}, {2: "a", 1: "b"}):
        loop = begun(engine, source, DecodeConfig(4), 0)
        decoder = loop.decoder.decoder
        decoder.alone = Tuning()
        decoder.choose_rows(lambda tuning, orders=orders: [orders[tuning.rows]])
        loop.decoder.plain.state.limit.fill_(2)
        loop.run(2)
        used.append(decoder.constants["ROWS"])
        expected = begun(plain, source, DecodeConfig(4), 2)
        assert torch.equal(tokens_of(loop, 2), tokens_of(expected, 2))
    assert used == [2, 1]


ORDERS = """
import sys, torch
from fakes import random_model
from superres.checkpoint import open_checkpoint
from superres.gpu.decoder import compiled_for
from superres.gpu.weights import HALF, HALF_PAIRS
network = random_model(open_checkpoint(sys.argv[1]).network, dtype=torch.float32)
settings = {"greedy": {}, "limits": {"E": 16}, "sampled": {"SAMPLED": True, "FILTERED": True}}
one, two = (compiled_for(network, True, tuning=tuning, **settings[sys.argv[2]]).sums
            for tuning in (HALF, HALF_PAIRS))
assert len(one) > 30
assert one == two, sorted({*one} ^ {*two})
"""


def compile_apart(text, arguments, folder):
    """Run a text that compiles where there is no GPU, in a process without the interpreter; return
    what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = os.pathsep.join(map(os.path.abspath, [".", "tests", "scripts"]))
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True,
                          timeout=900,
                          env=environment | {"PYTHONPATH": paths, "TRITON_CACHE_DIR": str(folder)},
                          cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("network", "settings"), [
    ("celeba-8to32", "greedy"), ("celeba-8to32", "limits"), ("celeba-8to32", "sampled"),
    ("celeba-32to64", "limits")])
def test_one_row_and_two_rows_per_program_add_in_one_order(network, settings, tmp_path):
    compile_apart(ORDERS, [network, settings], tmp_path)


RESOURCES = """
import re, subprocess, sys, torch, triton
from pathlib import Path
from fakes import random_model
from superres.checkpoint import open_checkpoint
from superres.gpu.decoder import compiled_for
network = random_model(open_checkpoint("celeba-8to32").network, dtype=torch.float32)
made = compiled_for(network, sys.argv[1] == "half")
Path("kernel.cubin").write_bytes(made.cubin)
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
usage = subprocess.run([tool, "-res-usage", "kernel.cubin"], capture_output=True, text=True,
                       check=True).stdout
print(made.shared, made.scratch, max(map(int, re.findall(r"STACK:(\\d+)", usage))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("half", 64), ("float", 640)])
def test_the_kernel_of_the_bundled_network_fits_a_gpu(kind, most, tmp_path):
    shared, scratch, spilled = map(int, compile_apart(RESOURCES, [kind], tmp_path).split())
    assert shared <= 227 << 10
    assert not scratch
    assert spilled <= most  # bytes of a thread


CACHED = """
import sys, torch, triton
import triton.language as tl
from superres.gpu.launch import compiled, compiled_and_loaded

@triton.jit
def twice(x, y, COUNT: tl.constexpr):
    place = tl.arange(0, COUNT)
    tl.store(y + place, 2 * tl.load(x + place))

def load(code):
    if len(code.cubin) < 1000:
        raise RuntimeError("the driver does not load it")
    return code

compiled_and_loaded(lambda: compiled(twice, [torch.float32] * 2, {"COUNT": int(sys.argv[1])}, 4,
                                     (9, 0)), load)
"""


@pytest.mark.slow
def test_a_compiled_kernel_is_kept_and_a_damaged_one_is_compiled_anew(tmp_path):
    """In processes without the interpreter, for a GPU that this machine may lack."""
    (tmp_path / "twice.py").write_text(CACHED)
    environment = {name: value for name,
                   value in os.environ.items() if not name.startswith("TRITON")}

    def made(count=64):
        done = subprocess.run([sys.executable, tmp_path / "twice.py", str(count)],
                              capture_output=True, text=True,
                              env=environment | {"PYTHONPATH": os.getcwd(),
                                                 "XDG_CACHE_HOME": str(tmp_path)})
        assert done.returncode == 0, done.stderr[-2000:]
        folder = tmp_path / "superres" / "triton"
        return {path.suffix: path for path in folder.rglob("twice.*")}, len(list(folder.iterdir()))

    files, count = made()
    assert count == 1
    content, time = files[".cubin"].read_bytes(), files[".cubin"].stat().st_mtime_ns
    made()
    assert files[".cubin"].stat().st_mtime_ns == time
    for suffix in (".cubin", ".json"):
        whole = files[suffix].read_bytes()
        files[suffix].write_bytes(whole[:100])
        made()
        assert len(files[suffix].read_bytes()) == len(whole)
    assert files[".cubin"].read_bytes() == content
    assert made(128)[1] == 2


def test_the_oldest_kernels_leave_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in ("TRITON_CACHE_DIR", "TRITON_HOME"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "superres" / "triton"
    for number in range(launch.KEPT + 2):
        (folder / str(number)).mkdir(parents=True)
        os.utime(folder / str(number), (number, number))
    with launch.cached():
        assert os.environ["TRITON_CACHE_DIR"] == str(folder)
    assert "TRITON_CACHE_DIR" not in os.environ
    assert {path.name for path in folder.iterdir()} == {str(number)
                                                        for number in range(2, launch.KEPT + 2)}

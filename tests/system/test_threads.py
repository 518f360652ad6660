"""Threads: how many are used, and that decoding goes on where they are taken away, shared or
forked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch
from fakes import NATIVE, VARIANTS, on_native, random_model, random_tokens

import superres
from decodes import decode
from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.system import threads
from superres.system.precision import _Precision, float32_products
from superres.system.torch_threads import TorchThreads

compiler = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
linux = pytest.mark.skipif(sys.platform != "linux" or build.compiler() is None,
                           reason="no fork, no affinity masks or no C++ compiler")

PRELUDE = """
import os, sys, torch
from dataclasses import replace
sys.path[:0] = [{tests!r}, {scripts!r}]
from fakes import NATIVE, VARIANTS, on_native, random_model, random_tokens
from superres.config import DecodeConfig
import superres
from decodes import decode

superres.set_threads(2)
torch.set_num_threads(2)
config = replace(VARIANTS["sequential heads"], **NATIVE)
source = random_tokens(config, 9)[0]

def model(threads=2):
    return on_native(random_model(config, dtype=torch.float32), threads=threads)

def tokens(model, rows=9):
    return decode(model, source[:rows], DecodeConfig()).tokens
"""


def run(code):
    """Run code after PRELUDE in a process of its own, which must not hang, and return what it
    prints."""
    tests = os.path.dirname(os.path.dirname(__file__))
    prelude = PRELUDE.format(tests=tests, scripts=os.path.join(tests, "..", "scripts"))
    result = subprocess.run([sys.executable, "-c", prelude + textwrap.dedent(code)],
                            capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@pytest.mark.parametrize(("groups", "own", "cores"), [
    ({"outer/cpu.max": "200000 100000", "outer/inner/cpu.max": "max 100000"}, "0::/outer/inner", 2),
    ({"outer/cpu.max": "200000 100000", "outer/inner/cpu.max": "50000 100000"}, "0::/outer/inner",
     0.5),
    # In a container the process's own group is mounted at the root, and its path outside leads
    # nowhere.
    ({"cpu.max": "300000 100000"}, "0::/docker/3f2a", 3),
    ({"cpu/box/cpu.cfs_quota_us": "250000", "cpu/box/cpu.cfs_period_us": "100000"},
     "3:cpu:/box\n4:memory:/", 2.5),
    ({"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
     "3:cpu,cpuacct:/a", float("inf")),
    ({}, "0::/", float("inf")),
])
def test_quotas_of_control_groups_are_read_as_cores(tmp_path, groups, own, cores):
    for name, text in groups.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert threads.core_quota(tmp_path / "groups", tmp_path / "own") == cores


def test_logical_cores_of_one_physical_core_count_as_one(tmp_path):
    for core, siblings in {0: "0,4", 1: "1,5", 4: "0,4"}.items():
        path = tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(siblings + "\n")
    count = partial(threads.physical_cores, folder=tmp_path)
    assert count(frozenset({0, 1, 4})) == 2
    assert count(frozenset({0, 1, 2, 3})) == 4  # two of which are not described


@pytest.mark.parametrize(("given", "variable", "cores", "expected"), [
    (None, None, 8, 4), (None, None, 2, 2), (None, "3", 8, 3), (None, " 2,1", 8, 2),
    (None, "64", 8, 4), (None, "0", 8, 4), (None, "-1", 8, 4), (None, "two", 8, 4), (3, "1", 8, 3),
    (64, "1", 8, 4), (1, None, 8, 1),
])
def test_threads_are_bounded_by_the_user_and_by_physical_cores(given, variable, cores, expected,
                                                               monkeypatch):
    monkeypatch.setattr(threads._Bound, "threads", None)
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.setattr(threads, "physical_cores", lambda _: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    if given is not None:
        superres.set_threads(given)
    assert threads.most_threads() == expected


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_a_number_of_threads_that_is_none_is_refused(count):
    with pytest.raises(ConfigError, match=f"at least 1, not {count!r}"):
        superres.set_threads(count)


@pytest.mark.slow
@pytest.mark.parametrize("variable", [{}, {"OMP_NUM_THREADS": "1"}])
def test_without_a_bound_threads_are_as_many_as_those_of_torch(variable):
    code = ("from superres.system.threads import most_threads, usable_cores; found = most_threads()"
            "; import torch; print(found, min(torch.get_num_threads(), usable_cores()))")
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    ours, torchs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                  check=True, env={**environment, **variable}).stdout.split()
    assert ours == torchs


@linux
def test_an_affinity_mask_bounds_the_threads_and_a_helper_starts_when_it_shares():
    assert run("""
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        measured = model(threads=None)
        print(measured.session(source[:1], 3).native.session.threads.count)
        # More threads than cores take turns, and none waits for ever.
        print(torch.equal(tokens(model(threads=3), 1), tokens(measured, 1)))
        session = model(threads=1).session(source[:1], 6)
        threads = session.native.session.threads
        threads.count, threads.least_columns = 4, 3
        before = len(os.listdir("/proc/self/task"))
        for width in (1, 6):
            session.resize(width)
            session.step(torch.zeros(1, width, dtype=torch.int64),
                         torch.zeros(1, dtype=torch.int64))
            print(len(os.listdir("/proc/self/task")) - before)
    """) == ["1", "True", "0", "1"]


def test_torch_gets_its_threads_back():
    before, limit = torch.get_num_threads(), TorchThreads(1)
    torch.set_num_threads(3)
    try:
        with limit:
            assert torch.get_num_threads() == 1
            with TorchThreads(2), limit:
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 1
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def host_precision(request):
    """A setting of the host program's, made by torch's older or newer interface."""
    request.param()
    yield precisions()
    torch.set_float32_matmul_precision("highest")
    for setting in _Precision.settings():
        setting.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # torch's default


def precisions():
    name = None
    with suppress(RuntimeError):  # unreadable beside the newer interface
        name = torch.get_float32_matmul_precision()
    return name, [setting.fp32_precision for setting in _Precision.settings()]


HIGHEST = "highest", ["ieee"] * 4
HOSTS = {
    "torch's default": lambda: None, "high": partial(torch.set_float32_matmul_precision, "high"),
    "medium": partial(torch.set_float32_matmul_precision, "medium"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "newer": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.mark.parametrize("host_precision", HOSTS.values(), ids=HOSTS, indirect=True)
def test_products_are_float32_in_a_decode_whatever_the_host_has_set(host_precision):
    model, seen = random_model(VARIANTS["sequential heads"], dtype=torch.float32), []
    for module in (model.encoder[0], model.conditioning, *model.decoder[0].modules(),
                   model.heads.expand):
        module.register_forward_pre_hook(lambda *_: seen.append(precisions()))
    source = random_tokens(model.config, 1)[0]
    decode(StepModel(model), source, DecodeConfig(block_size=2))
    assert seen
    assert all(one == HIGHEST for one in seen)
    assert precisions() == host_precision
    model.decoder[0].feed_forward[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decode(StepModel(model), source, DecodeConfig(block_size=2))
    assert precisions() == host_precision


@pytest.mark.parametrize("host_precision", [HOSTS["high"]], indirect=True)
def test_the_host_gets_its_precision_back_from_the_last_thread(host_precision):
    entered, first_left = threading.Barrier(2, timeout=30), threading.Event()

    def work(first):
        with float32_products(), float32_products():
            entered.wait()
            if not first:
                assert first_left.wait(30)
            return precisions()

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.submit(work, True), pool.submit(work, False)
        assert one.result(30) == HIGHEST
        assert precisions() == HIGHEST
        first_left.set()
        assert other.result(30) == HIGHEST
    assert precisions() == host_precision


@compiler
def test_several_decodes_at_once_draw_what_each_draws_alone():
    config = replace(VARIANTS["sequential heads"], **NATIVE)
    model, source = (on_native(random_model(config, dtype=torch.float32), threads=2),
                     random_tokens(config, 5)[0])
    alone = decode(model, source, DecodeConfig()).tokens
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: decode(model, source, DecodeConfig()).tokens, range(12)))
    assert all(torch.equal(tokens, alone) for tokens in results)


@linux
def test_every_entry_works_in_a_forked_child():
    found = run("""
        import signal
        import numpy as np
        from superres.config import BeamConfig
        from superres.decoding.batching import feed_of
        from superres.pipeline.upscaler import Face

        faces, lines = np.full((1, 8, 8, 3), 120, np.uint8), ["A dog runs.", "Two men talk."]
        quick, sampled = DecodeConfig(accept="distance"), DecodeConfig(temperature=0.9)
        upscaler, translator = superres.load("celeba-8to32"), superres.load("multi30k-en-de")
        plain = superres.load("multi30k-en-de", engine="plain")
        measured, forced = model(threads=None), model(threads=2)

        def refilled():
            items = feed_of([Face(face, key) for key, face in enumerate(faces)])
            finished = [one for some in upscaler.refilled(items, quick, 1).run() for one in some]
            return np.stack([one.tokens for one in finished])

        def fewer():
            superres.set_threads(1)
            return tokens(measured, 1), tokens(forced)[:1]

        entries = {
            "rows": lambda: tokens(forced), "row": lambda: tokens(forced, 1), "fewer": fewer,
            "call": lambda: upscaler(faces, quick).images,
            "sampled": lambda: upscaler(faces, sampled).images,
            "stream": lambda: [*upscaler.stream(faces, quick)][-1].images, "refilled": refilled,
            "translate": lambda: translator(lines).texts,
            "draft": lambda: translator(lines, DecodeConfig(proposer="draft")).texts,
            "beam": lambda: translator(lines, BeamConfig(4)).texts,
            "plain": lambda: plain(lines).texts,
        }
        expected = {name: entry() for name, entry in entries.items()}
        for name, entry in entries.items():
            child = os.fork()
            if not child:
                signal.alarm(400)  # ends a child that hangs
                os._exit(not np.array_equal(entry(), expected[name]))
            print(f"{name}: {os.waitpid(child, 0)[1]}", end=", ")
    """)
    assert found[1::2] == ["0,"] * 11, found


@linux
def test_a_large_batch_of_plain_steps_works_in_a_forked_child():
    assert run("""
        import signal
        from superres.nn.torch_model import StepModel

        plain = StepModel(random_model(config, dtype=torch.float32))
        source = random_tokens(config, 300)[0]
        expected, child = tokens(plain, 300), os.fork()
        if not child:
            signal.alarm(100)  # ends a child that hangs
            os._exit(not torch.equal(tokens(plain, 300), expected))
        print(os.waitpid(child, 0)[1])
    """) == ["0"]

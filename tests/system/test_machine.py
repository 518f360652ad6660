"""What is asked of the machine without torch: its memory, its GPU, and the versions."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from superres.system import machine


def driver(count, initialised=0):
    """Return a driver's library that reports `count` GPUs."""
    def report(reference):
        reference._obj.value = count
        return 0

    class Driver:
        cuInit = staticmethod(lambda flags: initialised)
        cuDeviceGetCount = staticmethod(report)

    return lambda name: Driver


def missing(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(("library", "visible", "present"), [
    (driver(2), None, True), (driver(2), "1", True), (driver(2), "", False),
    (driver(2), "-1", False), (driver(2), "-1,0", False), (driver(0), None, False),
    (driver(1, initialised=100), None, False), (missing, None, False),
    (lambda name: object(), None, False),
])
def test_a_gpu_is_one_that_the_driver_reports_to_this_process(library, visible, present,
                                                              monkeypatch):
    monkeypatch.setattr(machine.ctypes, "CDLL", library)
    monkeypatch.setattr(machine.Path, "exists", lambda path: False)  # AMD's device
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.gpu_present() == present


def test_torch_agrees_that_there_is_a_gpu():
    assert machine.gpu_present() == torch.cuda.is_available()


def test_free_memory_of_a_cpu_is_what_other_programs_see():
    expected = psutil.virtual_memory().available
    found = machine._available_bytes()
    assert abs(found - expected) < max(0.1 * expected, 5e8)
    assert 0 < machine.free_bytes("cpu") <= found + 5e8
    assert 0 < machine.free_bytes(torch.device("cpu")) <= found + 5e8


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_without_proc_the_free_pages_are_counted(monkeypatch):
    monkeypatch.setattr(machine.Path, "read_text", lambda path: missing(path))
    assert 0 < machine.free_bytes("cpu") <= psutil.virtual_memory().total


def test_windows_memory_has_the_size_that_its_call_wants():
    assert ctypes.sizeof(machine._MemoryStatus) == 64


def test_the_machine_is_described_without_torch():
    code = ("import sys; sys.modules['torch'] = None; from superres.system.machine import machine; "
            "found = machine('cpu'); print(found['torch'], found['threads'], found['gpu'])")
    version, threads, gpu = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2]).stdout.split()
    assert torch.__version__.startswith(version)
    assert (int(threads) >= 1, gpu) == (True, "None")

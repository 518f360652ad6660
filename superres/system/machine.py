"""Properties of the machine, asked of the system: processor, free memory, and whether there is a
GPU."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from superres.system.threads import most_threads


def machine(device: object) -> dict[str, Any]:
    """Return the properties on which measurements depend: processor, cores, threads, GPU and
    versions; `device` is a torch.device or its name."""
    gpu = None
    if str(device).startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(str(device))
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": most_threads(), "gpu": gpu,
            "torch": torch_version(), "python": platform.python_version(),
            "system": platform.system()}


def torch_version() -> str | None:
    """Return the version of torch, without importing it; None if it is not installed."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the name of the processor, as far as the system reports it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines
                        if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def gpu_present() -> bool:
    """Return whether a driver reports a GPU that this process may use, without importing torch."""
    # CUDA takes the numbers up to the first that is not one
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip() in ("", "-1"):
        return False
    count = ctypes.c_int(0)
    with suppress(OSError, AttributeError):  # no driver, or another library of its name
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value > 0 or Path("/dev/kfd").exists()  # AMD's driver


def free_bytes(device: object) -> int:
    """Return the free memory of a device ("cpu", "cuda", or a torch.device) in bytes; for a CPU,
    within the limit of its control group.

    What torch keeps of a GPU's memory for later tensors counts as free.
    """
    if str(device).startswith("cuda"):
        import torch

        kept = torch.cuda.memory_reserved(str(device)) - torch.cuda.memory_allocated(str(device))
        return torch.cuda.mem_get_info(str(device))[0] + kept
    free, group = _available_bytes(), Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return max(free, 0)


def _available_bytes() -> int:
    """Return the memory that the system can give to programs; on macOS, which does not tell it, all
    memory."""
    if sys.platform == "win32":
        status = _MemoryStatus(ctypes.sizeof(_MemoryStatus))
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.available)
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines
                           if line.startswith("MemAvailable:"))
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


class _MemoryStatus(ctypes.Structure):
    """Windows's MEMORYSTATUSEX: the free physical memory, and fields that are not read."""

    _fields_ = [("size", ctypes.c_uint32), ("load", ctypes.c_uint32), ("total", ctypes.c_uint64),
                ("available", ctypes.c_uint64), ("others", ctypes.c_uint64 * 5)]

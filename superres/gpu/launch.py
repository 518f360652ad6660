"""Compile a Triton kernel and launch it by the CUDA driver, which needs no C compiler on the
machine.

Triton keeps what it has compiled, by a digest of source, constants and versions, in files that are
written as a whole. They are in superres's cache folder, unless TRITON_CACHE_DIR or TRITON_HOME name
another.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import triton
from torch import Tensor

from superres.gpu.sum_order import sum_orders
from superres.system.output import cache_folder
from superres.system.progress import Progress

Loaded = TypeVar("Loaded")

KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64",
         torch.float64: "*fp64"}
LOCK = threading.Lock()
"""Held while a kernel is compiled or loaded, which is not safe in several threads at once."""
KEPT = 48
"""Compiled kernels that stay in the cache folder, of 3 to 6 MB each."""


@dataclass
class Compiled:
    """A kernel in machine code."""

    cubin: bytes
    name: str
    shared: int  # bytes of shared memory
    warps: int
    parameters: int  # pointers that it reads: the tensors, then Triton's own
    scratch: int  # bytes of memory that Triton wants of its own; 0 is all that is supported
    sums: list[str]  # in which order it adds, see `superres.gpu.sum_order`


def compiled(kernel: Any, kinds: list[torch.dtype], constants: dict[str, Any], warps: int,  # noqa: ANN401
             capability: tuple[int, int]) -> Compiled:
    """Compile a kernel, whose arguments are tensors of `kinds` and then numbers, for GPUs of a
    `capability`.

    The compiler may not fuse a product and a sum, so that rounding depends on the kernel's text
    alone. Needs no GPU.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = iter([KINDS[kind] for kind in kinds])
    signature = {name: "constexpr" if name in constants else next(types, "i32")
                 for name in kernel.arg_names}
    aligned = {(number,): [["tt.divisibility", 16]] for number in range(len(kinds))}
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    made = triton.compile(ASTSource(kernel, signature, constexprs=constants, attrs=aligned),
                          target=target, options={"num_warps": warps, "enable_fp_fusion": False})
    metadata = made.metadata
    entry = made.asm["ptx"].split(f".entry {metadata.name}(", 1)[1].split(")", 1)[0]
    return Compiled(made.asm["cubin"], metadata.name, metadata.shared, warps, entry.count(".param"),
                    getattr(metadata, "global_scratch_size", 0)
                    + getattr(metadata, "profile_scratch_size", 0), sum_orders(made.asm["ttgir"]))


def kept() -> dict[str, float]:
    """Return the kernels in superres's cache folder, and when they were compiled."""
    found = dict[str, float]()
    with suppress(OSError):
        for path in (cache_folder() / "triton").iterdir():
            with suppress(OSError):
                found[path.name] = path.stat().st_mtime
    return found


def writable_folder() -> Path:
    """Return superres's cache folder for kernels, or a temporary one if it cannot be written."""
    folder = cache_folder() / "triton"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"superres-triton-{os.getuid()}"
    return folder


@contextmanager
def cached(anew: bool = False) -> Iterator[None]:
    """Let Triton keep its kernels in superres's cache folder; `anew` compiles what is there, too.
    Held by LOCK."""
    wanted = {"TRITON_ALWAYS_COMPILE": "1"} if anew else {}
    if not {"TRITON_CACHE_DIR", "TRITON_HOME"} & set(os.environ):
        wanted["TRITON_CACHE_DIR"] = str(writable_folder())
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
        times = kept()
        for name in sorted(times, key=times.__getitem__)[:-KEPT]:
            shutil.rmtree(cache_folder() / "triton" / name, ignore_errors=True)


def compiled_and_loaded(compile_kernel: Callable[[], Compiled],
                        load: Callable[[Compiled], Loaded]) -> Loaded:
    """Return the loaded kernel; one that was in the cache and cannot be loaded is damaged, and
    compiled anew."""
    before = kept()
    try:
        with Progress("compiling the kernel for the GPU"), cached():
            return load(compile_kernel())
    except Exception:
        if kept() != before:  # it has just been compiled
            raise
    with Progress("compiling the kernel for the GPU anew"), cached(anew=True):
        return load(compile_kernel())


class Driver:
    """The functions of the CUDA driver that load and launch a kernel."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(code, ctypes.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'unknown error').decode()}")


class Kernel:
    """A compiled kernel, loaded on the current device."""

    def __init__(self, code: Compiled) -> None:
        if code.scratch:
            raise RuntimeError("the kernel needs memory of its own")
        torch.cuda.current_stream().synchronize()  # torch has made the device's context
        self.code, self.driver = code, Driver()
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver("cuModuleLoadData", ctypes.byref(self.module), code.cubin)
        self.driver("cuModuleGetFunction", ctypes.byref(self.function), self.module,
                    code.name.encode())
        if code.shared > 48 << 10:
            self.driver("cuFuncSetAttribute", self.function, ctypes.c_int(8),
                        ctypes.c_int(code.shared))

    def launch(self, programs: int, tensors: list[Tensor], numbers: tuple[int, ...]) -> None:
        """Launch `programs` programs on the current stream."""
        if any(tensor.data_ptr() % 16 or not tensor.is_contiguous() for tensor in tensors):
            raise ValueError("the tensors of a kernel must be contiguous and aligned to 16 bytes")
        values = [*(ctypes.c_uint64(tensor.data_ptr()) for tensor in tensors),
                  *map(ctypes.c_int32, numbers)]
        # Triton's own memory
        values += [ctypes.c_uint64(0) for _ in range(self.code.parameters - len(values))]
        parameters = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        sizes = (programs, 1, 1, 32 * self.code.warps, 1, 1, self.code.shared)
        self.driver("cuLaunchKernel", self.function, *map(ctypes.c_uint, sizes),
                    ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), parameters, None)


KERNELS: dict[Any, Kernel] = {}
"""Loaded kernels by device, types and constants."""


def launch(kernel: Any, programs: int, tensors: list[Tensor], numbers: tuple[int, ...],  # noqa: ANN401
           constants: dict[str, Any], warps: int) -> None:
    """Launch a kernel on the device of its tensors; on a CPU, Triton's interpreter runs it."""
    device = tensors[0].device
    if device.type != "cuda":
        kernel[(programs,)](*tensors, *numbers, **constants)
        return
    with torch.cuda.device(device):
        loaded(kernel, device, [tensor.dtype for tensor in tensors], constants, warps).launch(
            programs, tensors, numbers)


def loaded(kernel: Any, device: torch.device, kinds: list[torch.dtype], constants: dict[str, Any],  # noqa: ANN401
           warps: int) -> Kernel:
    """Return a kernel for tensors of `kinds` on a GPU; compile and load it if it is new."""
    key = kernel, device.index, warps, *kinds, *constants.items()
    if (known := KERNELS.get(key)) is not None:  # while another thread may compile, for minutes
        return known
    with LOCK, torch.cuda.device(device):
        if key not in KERNELS:
            capability = torch.cuda.get_device_capability(device)
            KERNELS[key] = compiled_and_loaded(
                lambda: compiled(kernel, kinds, constants, warps, capability), Kernel)
        return KERNELS[key]

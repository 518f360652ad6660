"""The precision of torch's float32 products, which the host program may have lowered for its own
work."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch


class _Precision:
    """torch's settings, which are those of the process, and the number of contexts that are
    open."""

    lock, depth = threading.Lock(), 0
    name: str | None = None  # the host's settings, by torch's older interface
    values: tuple[str, ...] = ()  # and by its newer one

    @classmethod
    def settings(cls) -> tuple[Any, ...]:
        backends: Any = torch.backends
        return (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv,
                backends.mkldnn.conv)

    @classmethod
    def raise_it(cls) -> None:
        cls.name = None
        with suppress(RuntimeError):  # unreadable if the host has used the newer interface
            cls.name = torch.get_float32_matmul_precision()
        cls.values = tuple(setting.fp32_precision for setting in cls.settings())
        torch.set_float32_matmul_precision("highest")
        for setting in cls.settings():
            setting.fp32_precision = "ieee"

    @classmethod
    def restore(cls) -> None:
        if cls.name is not None:
            torch.set_float32_matmul_precision(cls.name)
        for setting, value in zip(cls.settings(), cls.values, strict=True):
            setting.fp32_precision = value

    @classmethod
    def in_child(cls) -> None:
        # The threads that would leave their contexts do not survive a fork.
        cls.lock = threading.Lock()
        if cls.depth:
            cls.depth = 0
            cls.restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Precision.in_child)


@contextmanager
def float32_products() -> Iterator[None]:
    """Compute float32 products and convolutions in float32 within the context, whatever the host
    program has set.

    With TF32 or bfloat16, which torch allows if asked to, and for convolutions on a GPU by default,
    tokens would differ from those of other machines. The host's settings return when the last
    thread leaves its context.
    """
    with _Precision.lock:
        if not _Precision.depth:
            _Precision.raise_it()
        _Precision.depth += 1
    try:
        yield
    finally:
        with _Precision.lock:
            _Precision.depth = max(_Precision.depth - 1, 0)
            if not _Precision.depth:
                _Precision.restore()

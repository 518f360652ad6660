"""A stand-in for CUDA graphs that runs anywhere: operations are recorded once and replayed on the memory they had."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

HOST_READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_to_cpu", "allclose"}


class Tape(TorchDispatchMode):
    """Records operations with the very tensors that they read and wrote."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in HOST_READS, f"{name} reads from the device"
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def replay(self):
        for func, args, kwargs, out in self.operations:
            for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(out):
    if isinstance(out, torch.Tensor):
        return [out]
    return [part for part in out if isinstance(part, torch.Tensor)] if isinstance(out, (tuple, list)) else []


class Recorded:
    """Work that is called twice, the second time on tape; from then on the tape is replayed and no Python runs.

    As a CUDA graph it notices neither that Python would do something else now, nor that a tensor has moved.
    """

    made = 0

    def __init__(self, work):
        Recorded.made += 1
        self.work, self.calls, self.tape = work, 0, Tape()

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            self.work()
        elif self.calls == 2:
            with self.tape:
                self.work()
        else:
            self.tape.replay()

"""A stand-in for a GPU: torch's fake tensors, which have shapes and a device, but neither values nor memory.

They raise at once if an operation mixes devices or if the host reads a value. `Capture` stands for the capture of a
CUDA graph: it refuses what a real capture would refuse, and counts kernels.
"""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import torch
from recording import HOST_READS, tensors
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from superres.nn.torch_model import StepModel

CUDA = torch.device("cuda", 0)

NO_KERNEL = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""Operations besides views that launch no kernel."""

INDEXING = {"index", "index_put", "index_put_", "_unsafe_index"}


def fused_attention(query, key, value, mask):
    """Return what torch's memory-efficient kernel returns, which is the one that takes a mask on a GPU.

    Which kernel `F.scaled_dot_product_attention` runs depends on the GPU, and there is none.
    """
    mask = mask.expand(*query.shape[:3], key.shape[2])
    assert mask.stride(-1) == 1, "the kernel would copy the mask first"
    assert all(step % 16 == 0 for step in mask.stride()[:-1]), "the kernel would copy the mask first"
    assert query.dtype == key.dtype == value.dtype == mask.dtype
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, mask, False)[0]


@contextmanager
def fake_gpu(*models: StepModel):
    """Within the context, every new tensor is a fake one, and `models` are on the GPU.

    Parameters and buffers move, as by `Module.cuda`; any other tensor of a network stays on the CPU. Under `no_grad`,
    unlike in inference mode, operations are seen decomposed, as a GPU runs them.
    """
    attention = patch("torch.nn.functional.scaled_dot_product_attention", fused_attention)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), attention:
        for model in models:
            for module in {*model.model.modules(), *model.layers.modules()}:
                for table in (module._parameters, module._buffers):
                    table.update({name: torch.empty_like(value, device=CUDA) for name, value in table.items()
                                  if value is not None})
        yield


def is_view(func):
    return any(part.alias_info is not None and not part.alias_info.is_write for part in func._schema.returns)


class Capture(TorchDispatchMode):
    """Refuses what reads from the device or needs the host, and counts the operations that launch kernels.

    An operation counts once, though a few launch several kernels, such as a sort.
    """

    def __init__(self):
        super().__init__()
        self.kernels = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        assert name not in HOST_READS, f"{name} reads from the device"
        if name in INDEXING:
            assert not any(part.dtype == torch.bool for part in given[1:]), f"{name} by a mask waits for the device"
        self.require_device(name, given)
        out = func(*args, **(kwargs or {}))
        self.require_device(name, tensors(out))
        self.kernels += bool(tensors(out)) and name not in NO_KERNEL and not is_view(func)
        return out

    @staticmethod
    def require_device(name, parts):
        # A kernel gets the value of a single number on the host as an argument, unless it is copied.
        hosted = [part for part in parts if part.device != CUDA and (part.dim() or name in ("_to_copy", "copy_"))]
        assert not hosted, f"{name} uses a tensor on the host"


class Captures:
    """In place of CUDA graphs: runs the captured work under `Capture` whenever it is called, and counts its kernels."""

    def __init__(self):
        self.kernels = []

    def __call__(self, work):
        def run():
            with Capture() as capture:
                work()
            self.kernels.append(capture.kernels)

        return run

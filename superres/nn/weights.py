"""Networks as data and as torch modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from superres.config.parameters import check_shapes
from superres.interfaces import Network
from superres.nn.model import EncoderDecoder, meta_network
from superres.system.torch_threads import TorchThreads


def module_of(network: Network) -> EncoderDecoder:
    """Return the network on torch, on the CPU in evaluation mode; it is made once, with weights of
    its own."""
    if network.module is None:
        # hundreds of small operations: further threads would wait for one another
        with TorchThreads(1):
            module = meta_network(network.config)
            weights = module.state_dict()
            for name, own in weights.items():
                weights[name] = torch.empty_strided(own.shape, own.stride(), dtype=torch.float32)
                weights[name].copy_(torch.from_numpy(network.arrays[name]))
            module.load_state_dict(weights, assign=True)
        network.module = module.eval()
    return cast(EncoderDecoder, network.module)


def network_of(model: EncoderDecoder, revision: str = "") -> Network:
    """Return a torch network as data, which shares the memory of contiguous float32 weights on the
    CPU.

    It keeps a `model` on the CPU that is in evaluation mode as its module.
    """
    arrays = {name: weight.detach().to("cpu", torch.float32).contiguous().numpy()
              for name, weight in model.state_dict().items()}
    kept = not model.training and model.signal.device.type == "cpu"
    return Network(model.config, arrays, revision, model if kept else None)


def load_weights(model: EncoderDecoder, weights: Mapping[str, Tensor], origin: str,
                 optional: str | None = None) -> None:
    """Copy `weights`, by name, into `model` after a check of names and shapes.

    Error messages name `origin`. The model keeps its own tensors of names with the prefix
    `optional` that are missing. Raises CheckpointError if names or shapes differ.
    """
    own, found = ({name: tuple(weight.shape) for name, weight in tensors.items()}
                  for tensors in (model.state_dict(), weights))
    check_shapes(own, found, origin, optional)
    model.load_state_dict(weights, strict=False)

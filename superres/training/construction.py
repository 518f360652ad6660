"""Build what a stage trains with: the network, its optimisers, and the schedule of the learning
rate."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import PartialState
from torch import nn

from superres.checkpoint import load_checkpoint
from superres.config import ModelConfig, require
from superres.config.parameters import parameter_shapes
from superres.nn.heads import PredictionHeads
from superres.nn.model import EncoderDecoder
from superres.nn.weights import load_weights
from superres.pipeline.choose import pick_device
from superres.system.machine import free_bytes
from superres.system.threads import given_threads, usable_cores
from superres.training.muon import Muon
from superres.training.stage import Stage

BF16_ARITHMETIC = ("avx512_bf16", "amx_bf16", "bf16")
"""Names of bf16 arithmetic among torch's capabilities of a processor, of x86-64 and of ARM."""


def training_device(settings: Stage) -> torch.device:
    """Return the device of this process, one of several GPUs maybe; raise ConfigError if it is not
    available."""
    device: torch.device = PartialState(cpu=pick_device(settings.device) == "cpu").device
    return device


def resolved(settings: Stage, saved: Stage | None = None) -> Stage:
    """Return `settings` with a precision and a number of threads: by default those of `saved`, the
    run to resume.

    A new run is in bf16 on a GPU and on a processor with bf16 arithmetic, which others would
    emulate. It has one thread, or as many as `set_threads` or OMP_NUM_THREADS says: threads wait
    for one another at every operation, so that a core that another process uses makes a step on two
    threads many times slower than one on one thread.
    """
    # missing in older releases
    known: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    native = training_device(settings).type != "cpu" or any(map(known.get, BF16_ARITHMETIC))
    precision = saved.precision if saved is not None else "bf16" if native else "no"
    threads = (given_threads() if saved is None else saved.threads) or 1
    return dataclasses.replace(
        settings, precision=precision if settings.precision == "auto" else settings.precision,
        threads=settings.threads or min(threads, usable_cores()))


def build_model(config: ModelConfig, settings: Stage,
                start: str | Path | None = None) -> EncoderDecoder:
    """Build the network to train, warm-started from the checkpoint folder `start` if one is given.

    The warm start may lack only the weights of the head layer, or of its last heads, which start as
    copies of the last head that it has. It may have more heads; then the first ones are taken, or
    none if the network has no head layer.

    Raises:
        CheckpointError: the warm start belongs to another network.
        ConfigError: the stage trains heads that the network lacks, a frozen p1 has no target to
            learn, or the network is too large for the memory of the machine or its GPU.
    """
    require(not settings.trains_heads or config.prediction_heads > 1,
            f"stage {settings.stage} needs at least 2 prediction heads, not "
            f"{config.prediction_heads}")
    require(settings.trains_base or config.identity_p1 or settings.head_target == "tokens",
            "on a frozen base, a p1 with a layer of its own has only tokens to learn from; set "
            "head_target tokens")
    _require_memory(config, training_device(settings))
    torch.manual_seed(settings.seed)
    model = EncoderDecoder(config)
    model.gradient_checkpointing = settings.gradient_checkpointing
    if start is not None:
        _warm_start(model, load_checkpoint(start), str(start))
    if not settings.trains_base:
        model.requires_grad_(False)
    if model.heads is not None and (config.identity_p1 or settings.trains_heads):
        model.heads.requires_grad_(settings.trains_heads)
    return model


def _require_memory(config: ModelConfig, device: torch.device) -> None:
    """Raise ConfigError unless the weights to train fit into free memory, before any of them is
    made."""
    weights = sum(map(math.prod, parameter_shapes(config).values()))
    # In float32: weights, their average, gradients and both moments of the optimiser. A network for
    # a GPU is made on the CPU, beside its start.
    for where, copies in {device: 5, torch.device("cpu"): 5 if device.type == "cpu" else 2}.items():
        needed, free = 4 * copies * weights, free_bytes(where)
        memory = "memory" if where.type == "cpu" else "the GPU's memory"
        require(needed <= free, f"training this network takes {needed / 1e9:,.1f} GB of {memory}, "
                f"and {free / 1e9:,.1f} GB are free; choose a smaller preset, fewer heads or "
                "layers, or a smaller width")


def _warm_start(model: EncoderDecoder, base: EncoderDecoder, origin: str) -> None:
    """Copy the weights of `base`, read from `origin`, into `model`, whose head layer may be new."""
    weights, given, layer = base.state_dict(), base.heads, model.heads
    without_heads = {name: weight for name, weight in weights.items()
                     if not name.startswith("heads.")}
    if layer is None and base.config.identity_p1:
        weights = without_heads
    if (isinstance(given, PredictionHeads) and isinstance(layer, PredictionHeads) and given.count
        != layer.count):
        kinds = [(network.config.head_layer, network.config.head_filter_size)
                 for network in (base, model)]
        require(kinds[0] == kinds[1], f"{origin} has a head layer {kinds[0][0]} with {kinds[0][1]} "
                f"hidden units per head, which the heads have to share, not {kinds[1][0]} with "
                f"{kinds[1][1]}; leave --head-layer out")
        layer.take_heads(given)
        weights = without_heads
    load_weights(model, weights, origin, optional="heads.")


def schedule_share(settings: Stage, step: int, seconds: float) -> float:
    """Return the share of the schedule that is done, at least 1 at its end; always 0 in endless
    training."""
    if settings.endless:
        return 0.0
    return step / settings.steps if settings.steps else seconds / (60 * (settings.minutes or 1))


def learning_rate_factor(settings: Stage, step: int, seconds: float) -> float:
    """Return the factor on the peak learning rate, in [0, 1]: linear warm-up, then the decay of
    `settings.schedule`.

    "cosine" decays to 0 at the end; endless training has the warm-up only. "noam" is the schedule
    of Vaswani et al. (2017, "Attention Is All You Need", section 5.3): in the form of the paper and
    of tensor2tensor's `utils/learning_rate.py`, the rate of the update s = 1, 2, ... is c *
    width^-0.5 * min(s * warmup^-1.5, s^-0.5). Its peak, at s = warmup, is c * (width *
    warmup)^-0.5.
    """
    warmup = max(settings.warmup_steps, 1)
    warm = min(1.0, (step + 1) / warmup)
    if settings.schedule == "noam":
        return min(warm, math.sqrt(warmup / (step + 1)))
    return warm * 0.5 * (1 + math.cos(math.pi * min(schedule_share(settings, step, seconds), 1.0)))


def compile_layers(model: EncoderDecoder) -> None:
    """Compile the layers of a network that are not compiled yet; its batches must have one shape.

    A layer that would have to be compiled for too many shapes raises an error, instead of becoming
    slow.
    """
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for part in (*model.encoder, *model.decoder, model.neighbourhood):
        if part is not None and part._compiled_call_impl is None:
            part.compile(dynamic=False)


def build_optimizers(model: nn.Module, settings: Stage) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the trained weights, which share none; weight decay excludes vectors
    (biases, norms)."""
    trained, rate = [p for p in model.parameters() if p.requires_grad], settings.learning_rate
    fused = True if trained[0].is_cuda else None  # one kernel for all weights
    if settings.optimizer == "adam":
        return [torch.optim.Adam(trained, rate, betas=(0.9, 0.98), eps=1e-9, fused=fused)]
    # The rows of the output layer belong to different quantities, such as tokens, as those of an
    # embedding do.
    matrices = [layer.weight for name, layer in model.named_modules() if settings.optimizer
                == "muon"
                and isinstance(layer, nn.Linear) and name != "project"
                and layer.weight.requires_grad]
    others = [p for p in trained if not any(p is matrix for matrix in matrices)]
    groups = [{"params": [p for p in others if p.dim() > 1], "weight_decay": settings.weight_decay},
              {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0}]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, rate, betas=(0.9, 0.98), fused=fused)]
    if matrices:
        optimizers.append(Muon(matrices, rate, settings.weight_decay))
    return optimizers

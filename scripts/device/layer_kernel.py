"""A decoder layer of a step as one Triton kernel, compared with the network's own layer.

    TRITON_INTERPRET=1 python scripts/device/layer_kernel.py --device cpu   # by Triton's interpreter, without a GPU
    python scripts/device/layer_kernel.py                                   # on a GPU, with times
    python scripts/device/layer_kernel.py --compile                         # resources on sm_90, without a GPU

One program handles one row of a batch. Its W <= 16 columns are one tile whatever W is, so the sums of a column have one
order at every step width and batch size. Weights are read from the second-level cache; only the states and the ring of
keys and values are written.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import triton
import triton.language as tl
import typer
from torch import Tensor

from superres.checkpoint import bundled_folder, load_checkpoint
from superres.errors import ConfigError, SuperresError
from superres.nn.attention import attend
from superres.nn.layers import Layer

COLUMNS = 16
SLOTS = 32
"""Slots of the ring whose scores are computed together."""
RING = 272


@triton.jit
def norm(x, weight, bias, cols, D: tl.constexpr):  # noqa: ANN001, ANN201, D103 -- as in the network
    mean = tl.sum(x, 1) / D
    x = x - mean[:, None]
    x = x * tl.rsqrt(tl.sum(x * x, 1) / D + 1e-5)[:, None]
    return x * tl.load(weight + cols)[None, :] + tl.load(bias + cols)[None, :]


@triton.jit
def linear(y, weight, bias, out, inner, D_IN: tl.constexpr, PRECISION: tl.constexpr):  # noqa: ANN001, ANN201
    """Y [M, K] times rows `out` [N] of weight [*, D_IN] at columns `inner` [K]."""
    w = tl.load(weight + out[None, :] * D_IN + inner[:, None])  # [K, N]
    return tl.dot(y.to(w.dtype), w, input_precision=PRECISION) + tl.load(bias + out)[None, :]


@triton.jit
def layer(x_ptr, ring, place_ptr, reach_ptr, qw, qb, kvw, kvb, ow, ob, w1, b1, w2, b2, g1, n1, g2, n2, B, W,  # noqa: ANN001, ANN201, PLR0915
          R: tl.constexpr, D: tl.constexpr, H: tl.constexpr, S: tl.constexpr, F: tl.constexpr, M: tl.constexpr,
          C: tl.constexpr, PRECISION: tl.constexpr):
    """Add attention and feed-forward to the states x [B, W, D]; write the columns' keys and values into `ring`."""
    b = tl.program_id(0)
    rows, cols, size = tl.arange(0, M), tl.arange(0, D), tl.arange(0, S)
    real = rows < W
    x = tl.load(x_ptr + (b * W + rows)[:, None] * D + cols[None, :], mask=real[:, None], other=0.0)
    place = tl.load(place_ptr + b * W + rows, mask=real, other=0)
    reach = tl.load(reach_ptr + b * W + rows, mask=real, other=0)
    y = norm(x, g1, n1, cols, D)
    total = tl.zeros([M, D], tl.float32) + tl.load(ob + cols)[None, :]
    for h in range(H):
        out = h * S + size
        q = linear(y, qw, qb, out, cols, D, PRECISION) * (S ** -0.5)
        k = linear(y, kvw, kvb, out, cols, D, PRECISION)
        v = linear(y, kvw, kvb, D + out, cols, D, PRECISION)
        keys = ring + (b * H + h) * R * S
        values = ring + ((B + b) * H + h) * R * S
        tl.store(keys + place[:, None] * S + size[None, :], k.to(ring.dtype.element_ty), mask=real[:, None])
        tl.store(values + place[:, None] * S + size[None, :], v.to(ring.dtype.element_ty), mask=real[:, None])
        tl.debug_barrier()  # the program's other warps read these slots
        high = tl.full([M], float("-inf"), tl.float32)
        weight = tl.zeros([M], tl.float32)
        part = tl.zeros([M, S], tl.float32)
        for first in range(0, R, C):
            slot = first + tl.arange(0, C)
            key = tl.load(keys + slot[None, :] * S + size[:, None], mask=slot[None, :] < R, other=0.0)  # [S, C]
            value = tl.load(values + slot[:, None] * S + size[None, :], mask=slot[:, None] < R, other=0.0)
            score = tl.dot(q.to(key.dtype), key, input_precision=PRECISION)
            seen = ((place[:, None] - slot[None, :] + R) % R <= reach[:, None]) & (slot[None, :] < R)
            score = tl.where(seen, score, float("-inf"))
            now = tl.maximum(high, tl.max(score, 1))
            safe = tl.where(now == float("-inf"), 0.0, now)
            p = tl.exp(score - safe[:, None])
            old = tl.exp(tl.where(high == float("-inf"), float("-inf"), high - safe))
            weight = weight * old + tl.sum(p, 1)
            part = part * old[:, None] + tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
            high = now
        part = part / weight[:, None]
        o = tl.load(ow + cols[None, :] * D + out[:, None])  # [S, D]
        total += tl.dot(part.to(o.dtype), o, input_precision=PRECISION)
    x += total
    y = norm(x, g2, n2, cols, D)
    total = tl.zeros([M, D], tl.float32) + tl.load(b2 + cols)[None, :]
    for first in range(0, F, D):
        inner = first + cols
        hidden = tl.maximum(linear(y, w1, b1, inner, cols, D, PRECISION), 0.0)
        w = tl.load(w2 + cols[None, :] * F + inner[:, None])  # [D of F, D]
        total += tl.dot(hidden.to(w.dtype), w, input_precision=PRECISION)
    tl.store(x_ptr + (b * W + rows)[:, None] * D + cols[None, :], x + total, mask=real[:, None])


def weights_of(one: Layer, kind: torch.dtype) -> list[Tensor]:
    """Return the weights of a layer in the order of the kernel's arguments, its matrices in `kind`."""
    own, forward = one.attention, one.feed_forward
    norms = one.attention_residual.norm, one.feed_forward_residual.norm
    linears = own.query, own.key_value, own.output, forward[0], forward[2]
    return [*(part for one in linears for part in (one.weight.to(kind), one.bias)),
            *(part for one in norms for part in (one.weight, one.bias))]


def run(x: Tensor, ring: Tensor, place: Tensor, reach: Tensor, one: Layer, weights: list[Tensor]) -> None:
    """Run the kernel on states x [B, W, D], in place, with a ring [2, B, H, R, size] of keys and values."""
    batch, width, size = x.shape
    heads = one.attention.heads
    # In float32, the tile of a weight takes more shared memory than there is: for GPUs it must be cut along D_IN.
    layer[(batch,)](x, ring, place, reach, *weights, batch, width, R=ring.shape[3], D=size, H=heads, S=size // heads,
                    F=one.feed_forward[0].out_features, M=COLUMNS, C=SLOTS,
                    PRECISION="tf32" if ring.dtype == torch.bfloat16 else "ieee", num_warps=8)


def relative(found: Tensor, wanted: Tensor) -> float:
    """Return the relative difference in the Euclidean norm."""
    return float((found.float() - wanted).norm() / wanted.norm())


@torch.inference_mode()
def compare(device: torch.device, batch: int = 2, width: int = 10) -> dict[str, Any]:
    """Compare the kernel with the network's layer, and one column alone with the same column among `width`."""
    model = load_checkpoint(bundled_folder() / "celeba-8to32").to(device).eval()
    one, generator = model.decoder[1], torch.Generator().manual_seed(0)
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32  # the interpreter computes garbage in bfloat16
    x = torch.randn(batch, width, model.config.width, generator=generator).to(device)
    heads = one.attention.heads
    ring = torch.randn(2, batch, heads, RING, x.shape[2] // heads, generator=generator).to(device, kind)
    position = torch.randint(200, 900, (batch, 1), generator=generator).to(device) + torch.arange(width, device=device)
    place, reach = position % RING, 128 + position % 128
    distance = (place.unsqueeze(-1) - torch.arange(RING, device=device)) % RING  # [B, W, R]
    mask = torch.where(distance <= reach.unsqueeze(-1), 0.0, float("-inf")).unsqueeze(1)
    wide = ring.float()

    def cached(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        at = place[:, None, :, None].expand(-1, heads, -1, key.shape[-1])
        wide[0].scatter_(2, at, key)
        wide[1].scatter_(2, at, value)
        return attend(query, wide[0], wide[1], mask)

    wanted, weights = one.transform(one.attend(x, cached, None)), weights_of(one, kind)
    found, written, alone, again = x.clone(), ring.clone(), x[:, :1].clone(), x.clone()
    run(found, written, place, reach, one, weights)
    run(alone, ring.clone(), place[:, :1].contiguous(), reach[:, :1].contiguous(), one, weights)
    run(again, ring.clone(), place, reach, one, weights)
    report = {"states": relative(found, wanted), "ring": relative(written, wide),
              "width 1 = width 10": torch.equal(alone, again[:, :1])}
    for rows in (1, 64, 256, 1024) if device.type == "cuda" else ():
        many = [part[:1].repeat(rows, *[1] * (part.dim() - 1)) for part in (x, place, reach)]
        own = ring[:, :1].repeat(1, rows, 1, 1, 1)
        report[f"us, {rows} rows"] = 1e3 * triton.testing.do_bench(
            lambda many=many, own=own: run(many[0], own, *many[1:], one, weights), return_mode="median")
    return report


def compile_resources(kind: str, precision: str, warps: int) -> dict[str, Any]:
    """Compile the kernel of the bundled network for sm_90, and return registers, spills and shared memory in bytes."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"R": RING, "D": 128, "H": 4, "S": 32, "F": 512, "M": COLUMNS, "C": SLOTS, "PRECISION": precision}
    types = {name: "i32" for name in "BW"} | {name: "*i64" for name in ("place_ptr", "reach_ptr")} | {
        name: f"*{kind}" for name in ("qw", "kvw", "ow", "w1", "w2", "ring")} | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in layer.arg_names}
    aligned = {(number,): [["tt.divisibility", 16]]
               for number, name in enumerate(layer.arg_names) if signature[name].startswith("*")}
    compiled = triton.compile(ASTSource(layer, signature, constexprs=constants, attrs=aligned),
                              target=GPUTarget("cuda", 90, 32), options={"num_warps": warps})
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        printed = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+).*?STACK:(\d+).*?LOCAL:(\d+)", printed, re.DOTALL)
    used = dict(zip(("registers", "stack", "local"), map(int, found.groups()), strict=True)) if found else {}
    return {"shared": compiled.metadata.shared, **used}


def main(
    device: Annotated[str, typer.Option(help="cuda, or cpu for Triton's interpreter.")] = "cuda",
    compile_only: Annotated[bool, typer.Option("--compile", help="Only print the resources on sm_90.")] = False,
) -> None:
    """Print how the kernel differs from the layer, and its times on a GPU; or its resources."""
    if compile_only:
        for kind, precision, warps in (("bf16", "tf32", 4), ("bf16", "tf32", 8), ("fp32", "ieee", 8)):
            try:
                print(kind, precision, warps, "warps:", compile_resources(kind, precision, warps), flush=True)
            except Exception as error:  # a kernel that does not fit is a result
                print(kind, precision, warps, "warps:", str(error).splitlines()[0], flush=True)
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no GPU on this machine; set TRITON_INTERPRET=1 and give --device cpu")
    print(compare(torch.device(device)))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"layer_kernel: {error}")

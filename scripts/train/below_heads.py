"""Train the head that drafts the token below, on the states of a frozen network, and print what it
predicts."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from spatial_heads import APART, IN_ORDER, WEIGHTS, BelowHead
from superres.checkpoint import find_checkpoint, load_checkpoint
from superres.nn.model import DecoderOutput, EncoderDecoder, take
from superres.tasks.face_data import FacePairs, read_faces
from superres.tasks.faces import FaceTask, encode


def head_scores(model: EncoderDecoder, head: BelowHead, decoded: DecoderOutput, place: Tensor,
                way: int) -> Tensor:
    """Return the head's scores [B, P, V] of targets `place` [B, P], none in the first row."""
    memory = decoded.memory
    return head(take(decoded.hidden, place - head.distance),
                model.signal[place] + take(memory.conditioning, place),
                take(decoded.neighbours, place), memory.estimate.gather(1, place), place, way)


def tokens_of(pairs: FacePairs, rows: slice) -> tuple[Tensor, Tensor]:
    """Return the tokens of sources and targets [N, S], [N, T]."""
    return torch.from_numpy(encode(pairs.lr[rows])), torch.from_numpy(encode(pairs.hr[rows]))


def report(model: EncoderDecoder, head: BelowHead, pairs: FacePairs, temperature: float) -> None:
    """Print bits/dim, the share of tokens that are the likeliest one, and the overlap with p1 at a
    temperature, which is the chance that a draft passes; all below the first row."""
    place = torch.arange(head.distance, model.config.target_length).unsqueeze(0)  # [1, P]
    sums: dict[str, Tensor] = {}
    for row in range(len(pairs)):
        source, target = tokens_of(pairs, slice(row, row + 1))
        decoded, own = model(source, target), target[:, head.distance :].unsqueeze(-1)
        p = model.head_scores(decoded, place, 0)
        found = {"p1": p, "below, apart": head_scores(model, head, decoded, place, APART),
                 "below, in order": head_scores(model, head, decoded, place, IN_ORDER)}
        for number in range(1, model.config.prediction_heads):
            # from the state `number` tokens before the target
            found[f"p{number + 1}"] = model.head_scores(decoded, place - number, number)
        p = (p / temperature).softmax(-1)
        for name, scores in found.items():
            log_q = scores.log_softmax(-1)
            overlap = torch.minimum(p, (scores / temperature).softmax(-1)).sum(-1)
            sums[name] = sums.get(name, torch.zeros(3)) + torch.stack([
                -log_q.gather(-1, own).mean() / math.log(2),
                (scores.argmax(-1, keepdim=True) == own).float().mean(), overlap.mean()])
    for name, total in sums.items():
        bits, first, overlap = (total / len(pairs)).tolist()
        print(f"{name:16} {bits:.3f} bits/dim, likeliest {first:.3f}, overlap {overlap:.3f}")


def main(
    data: Annotated[Path, typer.Argument(help="Faces to train on, an .npz.")],
    dev: Annotated[Path, typer.Argument(help="Faces to measure on, an .npz.")],
    checkpoint: Annotated[str, typer.Option(help="The frozen network.")] = "celeba-8to32",
    output: Annotated[Path, typer.Option(help="The weights to write.")] = WEIGHTS,
    minutes: Annotated[float, typer.Option(help="Time to train for.")] = 15.0,
    batch: Annotated[int, typer.Option(min=1, help="Pictures per call of the network.")] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="Training steps per call.")] = 16,
    count: Annotated[int, typer.Option("--targets", help="Targets per picture and step.")] = 512,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 2e-3,
    faces: Annotated[int, typer.Option(help="Faces to measure on.")] = 32,
) -> None:
    """Train on p1's own distributions, at random targets of random faces."""
    torch.manual_seed(0)
    model = load_checkpoint(find_checkpoint(checkpoint)).requires_grad_(False)
    task = FaceTask.of(model.config)
    pairs, head = read_faces(data, task), BelowHead(model.config)
    adam, started, step, spent = torch.optim.Adam(head.parameters(), rate), time.monotonic(), 0, 0.0
    head.direct.data.copy_(model.neighbourhood.direct)
    while spent < 1:
        if step % repeats == 0:
            rows = torch.randint(len(pairs), (batch,)).numpy()
            with torch.no_grad():
                decoded = model(*tokens_of(pairs, rows))
        place = torch.randint(head.distance, model.config.target_length, (batch, count))
        with torch.no_grad():
            wanted = model.head_scores(decoded, place, 0).softmax(-1)
        scores = [head_scores(model, head, decoded, place, way) for way in (APART, IN_ORDER)]
        loss = sum(-(wanted * one.log_softmax(-1)).sum(-1).mean() for one in scores)
        spent = (time.monotonic() - started) / (60 * minutes)
        adam.param_groups[0]["lr"] = rate * min(1, (step + 1) / 100) * (
            0.5 + 0.5 * math.cos(math.pi * min(spent, 1)))
        adam.zero_grad()
        loss.backward()
        adam.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step}: {loss.item() / 2 / math.log(2):.3f} bits/dim", flush=True)
    save_file({name: weight.detach().half() for name, weight in head.state_dict().items()}, output)
    with torch.inference_mode():
        report(model, head.eval(), read_faces(dev, task, limit=faces), 0.9)


if __name__ == "__main__":
    typer.run(main)

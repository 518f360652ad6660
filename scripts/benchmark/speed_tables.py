"""The tables and the sentences of speed, made of the document that scripts/benchmark/speed.py
writes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from functools import partial

from measurements import Columns, Document, Values, columns_table, values
from speed_worker import PEER
from superres.config import DEFAULT_CASCADE, DEFAULT_CHECKPOINT
from superres.system.output import markdown_table

INT8 = f"{PEER}int8, greedy"
"""What the times of text are compared with."""
FIRST_USES = {"compiled": "a face, without a cache: the library is compiled first",
              "wheel": "a face, with the library, as in a wheel, and nothing else",
              "again": "a face, every later time", "small": "a face with `--size 32`",
              "help": "`superres --help`", "page": "the page, until its first answer"}
"""Processes of a first use, by what is measured of them."""


def labels(document: Document) -> list[str]:
    """Return the names of our variants, the fastest first."""
    return list(document["conditions"]["variants"])


def per_input(one: Values, clock: str = "seconds") -> float:
    """Return the seconds per input of an answer of `speed_worker.answer`."""
    return float(one[clock] / one["inputs"])


def named(way: str) -> list[str]:
    """Return the engine and the decoding that a way names, as cells."""
    engine, decoding = way.split(", ", 1)
    return [engine if engine.startswith(PEER) else f"`{engine}`", decoding]


def faces_table(document: Document, checkpoint: str = DEFAULT_CASCADE,
                kinds: Iterable[str] = ("",)) -> str:
    """Return seconds per face by way and variant, and the tokens per step of every stage, of ways
    of some kinds."""
    shown, rows = labels(document), []
    for way, found in values(document)[f"faces, {checkpoint}"].items():
        if not any(kind in way for kind in kinds):
            continue
        first = found[shown[0]]
        tokens = [f"{count / steps:.2f}"
                  for count, steps in zip(first["tokens"], first["steps"], strict=True)]
        rows.append([*named(way), *(f"{per_input(found[label]):.3f}" for label in shown),
                     " and ".join(tokens)])
    return markdown_table(["engine", "decoding", *shown, "tokens per step"], rows)


def batch_table(document: Document) -> str:
    """Return faces per second of a batch by way and variant."""
    shown = labels(document)
    return markdown_table(["engine", "decoding", "faces at once", *shown], [
        [*named(way), str(found[shown[0]]["inputs"]),
         *(f"{1 / per_input(found[label]):.1f}" for label in shown)]
        for way, found in values(document)["batch"].items()])


def text_table(document: Document) -> str:
    """Return milliseconds of CPU time per caption, in brackets over those of CTranslate2's int8,
    and BLEU."""
    parts, shown, rows = values(document, "text, "), labels(document), []
    for way, found in parts["together"].items():
        times = [[per_input(one[name][label], "cpu") for name in (way, INT8)]
                 for one in parts.values() for label in shown]
        rows.append([*named(way), *(f"{1000 * own:.2f} ({own / other:.2f})"
                                    for own, other in times), f"{found[shown[0]]['bleu']:.1f}"])
    together = parts["together"][INT8][shown[0]]["inputs"]
    heads = [f"{kind}, {label}" for kind in ("one at a time", f"{together} together")
             for label in shown]
    return markdown_table(["engine", "decoding", *heads, "BLEU"], rows)


def never_slower(document: Document) -> dict[str, dict[str, tuple[float, float]]]:
    """Return seconds of CPU time per input, greedily and by the default, by case and variant."""
    return {case: {label: (per_input(found["greedy"][label], "cpu"),
                           per_input(found["default"][label], "cpu"))
                   for label in labels(document)}
            for case, found in values(document, "never-slower, ").items()}


def never_slower_table(document: Document) -> str:
    """Return milliseconds of CPU time per input of greedy decoding, and in brackets the default's
    time over it."""
    rows = []
    for case, found in never_slower(document).items():
        engine, inputs, size = case.split(", ")
        rows.append([f"`{engine}`", inputs, size, *(
            f"{1000 * greedy:.2f} ({default / greedy:.2f})" for greedy, default in found.values())])
    return markdown_table(["engine", "inputs", "at once", *labels(document)], rows)


def first_use_table(document: Document) -> str:
    """Return seconds of the clock and of the processor, and the memory, of a process until a face
    is written, by what the cache has, and of others."""
    found = values(document)["first-use"]
    return markdown_table(["process", "seconds", "of the processor", "MB"], [
        [text, *(f"{found[name][key]:.2f}" for key in ("seconds", "cpu")),
         f"{found[name]['memory'] / 1e6:.0f}"] for name, text in FIRST_USES.items()])


def beside_table(document: Document) -> str:
    """Return the times of another checkout over those of our fastest variant."""
    name, first, rows = document["conditions"]["beside"], labels(document)[0], []
    for row, found in values(document).items():
        for way, by_label in found.items() if row not in ("first-use", "peers") else ():
            clock = "cpu" if row.startswith(("never-slower", "text")) else "seconds"
            old, new = (1000 * per_input(by_label[label], clock) for label in (name, first))
            rows.append([row, way, f"{old:.2f}", f"{new:.2f}", f"{old / new:.2f}"])
    return markdown_table(["measured", "decoding", f"{name} (ms)", f"{first} (ms)",
                           "times as fast"], rows)


# Sentences


def listed(words: Iterable[str]) -> str:
    """Return words with commas and "and" between them."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def where(document: Document) -> str:
    """Return the machine of the measurements, and whether it was busy."""
    given, count = document["conditions"], document["machine"]["cores"]
    busy = " **beside other work**" if given["busy"] else ""
    return f"{count} cores ({given['processor']}){busy}"


def conditions(document: Document) -> str:
    """Return where, when and how the times were taken."""
    given = document["conditions"]
    forced = [f" {label} is `SUPERRES_NATIVE={name}` there."
              for label, name in given["variants"].items() if label.endswith("forced")]
    return (f"Measured on {where(document)}, {document['date']}, commit {document['commit']}: the "
            f"shortest of {given['rounds']} rounds in turns.{''.join(forced)}")


def face_gains(document: Document) -> str:
    """Return the gain of the fastest exact decode, of any engine, over the fastest greedy one, and
    of epsilon 2."""
    found, said = values(document)[f"faces, {DEFAULT_CASCADE}"], list[str]()
    for label in labels(document):
        greedy, exact, epsilon = (
            min(per_input(one[label]) for way, one in found.items() if kind in way)
            for kind in ("greedy", "exact", "epsilon"))
        gains = greedy / exact, greedy / epsilon
        said.append("with {}, {:.2f} and {:.2f} times".format(label, *gains) if said else (
            "With {}, the fastest exact decoding is {:.2f} times as fast as the fastest greedy "
            "decoding, and epsilon 2 {:.2f} times".format(label, *gains)))
    return f"**{'; '.join(said)}**."


def batch_gains(document: Document) -> str:
    """Return the faces per second of a batch with the fastest variant."""
    label, found = labels(document)[0], values(document)["batch"]
    engine, size = next(iter(found)).split(", ")[0], next(iter(found.values()))[label]["inputs"]
    rates = [f"{1 / per_input(one[label]):.1f} {text}" for one, text in zip(
        found.values(), ("per second greedily", "by default", "within epsilon 2"), strict=True)]
    return f"Of {size} faces together, `{engine}` draws {listed(rates)} ({label})."


def text_gains(document: Document) -> str:
    """Return the CPU time of the default engine over that of CTranslate2's int8, by variant."""
    shown, parts = labels(document), values(document, "text, ")
    engine, *_ = next(iter(parts["together"])).split(", ")
    alone, together = (
        listed(f"{found[f'{engine}, the default'][label]['cpu'] / found[INT8][label]['cpu']:.2f}"
               for label in shown) for found in parts.values())
    count = parts["together"][INT8][shown[0]]["inputs"]
    return (f"On one thread, `{engine}` translates a caption in {alone} times the CPU time of "
            f"CTranslate2's int8, and {count} together in {together} times ({listed(shown)}).")


def slowest(document: Document) -> str:
    """Return the largest ratio of the default's time to that of one token per step."""
    found = {(case, label): default / greedy for case, by_label in never_slower(document).items()
             for label, (greedy, default) in by_label.items()}
    sizes = [int(case.split(", ")[-1]) for case, _ in found]
    return (f"In {len(found)} cases of {min(sizes)} to {max(sizes)} faces or captions, the default "
            f"takes at most {max(found.values()):.2f} times the CPU time of greedy decoding.")


def steps(document: Document) -> str:
    """Return the steps of the astronaut by way."""
    found = values(document)["first-use"]
    ways = [found[f"astronaut, {way}"] for way in ("default", "exact", "epsilon 2")]
    (default, own), (exact, wide), (epsilon, loose) = (
        (f"{one['steps']:,}", f"{one['tokens'] / one['steps']:.2f}") for one in ways)
    return (f"One token per step takes {ways[0]['tokens']:,} steps for the astronaut, in two "
            f"stages. `superres upscale` takes {default} by default ({own} tokens per step), and "
            f"draws the same picture, to the bit. Exact blocks of up to ten take {exact} steps "
            f"({wide}), and blocks within epsilon 2 (two grey levels) {epsilon} ({loose}).")


def readme(document: Document) -> str:
    """Return the README's part on speed: its table and sentences."""
    said = " ".join(part(document) for part in (face_gains, batch_gains, text_gains, slowest))
    before = (f"Seconds per 64x64 face, in two stages, on {where(document)}, without a GPU; greedy "
              "decoding has one token per step:")
    table = faces_table(document, kinds=("greedy", "the default", "epsilon"))
    return "\n\n".join((wrapped(before), table, wrapped(said)))


def wrapped(text: str) -> str:
    """Return a sentence in lines as long as those of the pages."""
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def busy_steps(document: Document) -> str:
    """Return the steps of the astronaut on an idle and on a busy machine."""
    found = values(document)["first-use"]
    return (f"The astronaut takes {found['astronaut, default']['steps']:,} steps by default, and "
            "beside a process that keeps half of the cores busy "
            f"{found['astronaut, busy']['steps']:,}.")


def views(document: Document) -> dict[str, str]:
    """Return the tables and sentences of what was measured, by name."""
    rates: Columns = {"engine": ("engine", 0),
                      **{f"{name}, faces per second": (name, 3)
                         for name in ("greedy", "exact", "epsilon 2")}}
    made: dict[str, Callable[[Document], str]] = {"conditions": conditions}
    parts: dict[str, dict[str, Callable[[Document], str]]] = {
        f"faces, {DEFAULT_CASCADE}": {"faces-64": faces_table, "face-gains": face_gains},
        f"faces, {DEFAULT_CHECKPOINT}": {
            "faces-32": partial(faces_table, checkpoint=DEFAULT_CHECKPOINT)},
        "batch": {"batch": batch_table},
        "text, together": {"text": text_table, "text-gains": text_gains},
        "never-slower": {"never-slower": never_slower_table, "slowest": slowest},
        "first-use": {"first-use": first_use_table, "steps": steps, "busy-steps": busy_steps},
        "peers": {"peers": lambda one: columns_table(values(one)["peers"]["rows"], rates)},
    }
    measured = [row for row in parts if any(name.startswith(row) for name in document["rows"])]
    for row in measured:
        made |= parts[row]
    if measured == list(parts):
        made["readme"] = readme
    if document["conditions"]["beside"]:
        made["beside"] = beside_table
    found = {name: view(document) for name, view in made.items()}
    return {name: text if "|" in text else wrapped(text) for name, text in found.items()}

"""Record the translations of the page's game: what the bundled translator says, and how long the
accepted blocks of its prediction heads are.

    python scripts/record_sentences.py

With exact acceptance, a translation is the greedy one whoever drafts, so the recorded pieces verify
any guess, and the page needs no translator.
"""

from __future__ import annotations

import json
from typing import Any

from superres.config import DEFAULT_TRANSLATOR
from superres.pipeline.translator import Translator
from superres.system.output import write_result
from superres.web.draft_view import SENTENCES

SOURCES = (
    "A small dog runs through deep snow.",
    "Two women are sitting on a bench in the park.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Children play in the water on a hot day.",
    "A woman is selling fruit at a market.",
    "A young boy in a red jacket jumps over a puddle in the street.",
)


def recorded(translator: Translator) -> dict[str, Any]:
    """Return the sentences with the pieces of their translations, and for each block size the
    numbers of pieces that each call accepts of the heads' proposals."""
    heads, sentences = translator.scoring.prediction_heads, list[dict[str, Any]]()
    for source in SOURCES:
        pieces, accepted = list[str](), {}
        for size in range(2, heads + 1):
            [line] = translator([source], block_size=size).lines
            [trace] = line.traces
            *pieces, _ = translator.codec.surfaces(trace.sequence.tolist())
            accepted[str(size)] = trace.accepted
        sentences.append({"source": source, "pieces": pieces, "accepted": accepted})
    return {"languages": list(translator.languages), "heads": heads, "sentences": sentences}


def main() -> None:
    """Write the page's file."""
    content = recorded(Translator.load(DEFAULT_TRANSLATOR, "cpu"))
    lines = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in content.pop("sentences"))
    head = json.dumps(content)[1:-1]
    write_result(SENTENCES, f'{{{head}, "sentences": [\n  {lines}\n]}}\n'.encode())


if __name__ == "__main__":
    main()

"""What the check of losslessness finds in transformers' assisted generation, with small random
networks (the `peers` extra)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import torch
import transformers
import typer
from transformers import Gemma4AssistantConfig, Gemma4TextConfig, LlamaConfig

from measurements import run
from superres.decoding.plain.sampling import filtered
from superres.testing import check_lossless

END, PROMPTS = 5, [[7, 8, 7, 8, 7], [4, 2, 1, 4, 2], [2, 9, 10, 11, 1], [3, 1, 4, 1, 9]]
SETTINGS = [(1.0, 0, 1.0), (0.7, 4, 1.0), (1.3, 0, 0.8)]  # temperature, top-k (0: all), nucleus
SHAPE = {"vocab_size": 12, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 64, "bos_token_id": None,
         "eos_token_id": END, "pad_token_id": END, "initializer_range": 0.3}
GEMMA = {**SHAPE, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
         "head_dim": 16, "global_head_dim": 16, "initializer_range": 0.12, "sliding_window": 64,
         "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
         "layer_types": ["sliding_attention", "full_attention"]}


def network(kind: str, config: Any, seed: int) -> Any:  # noqa: ANN401 -- transformers' own classes
    """Return a network with random weights, in float64, so that rounding makes no difference."""
    torch.manual_seed(seed)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval().double()


def networks(way: str) -> tuple[Any, Any]:
    """Return a network and one that drafts; None for prompt lookup, which drafts without."""
    if way == "gemma":
        text = Gemma4TextConfig(**GEMMA, num_kv_shared_layers=2)
        assistant = Gemma4AssistantConfig(text_config=text, backbone_hidden_size=32)
        base = Gemma4TextConfig(**GEMMA, num_kv_shared_layers=0)
        return network("Gemma4", base, 0), network("Gemma4Assistant", assistant, 1)
    base, draft = (network("Llama", LlamaConfig(**SHAPE), seed) for seed in (0, 1))
    return base, draft if way == "network" else None


def decoder(base: Any, draft: Any, top_k: int = 0, top_p: float = 1.0) -> Callable[..., Any]:  # noqa: ANN401 -- as above
    """Return assisted generation as a decoder to check."""
    def decode(prompts: list[list[int]], *, block_size: int, seed: int, temperature: float,
               length: int) -> list[list[int]]:
        torch.manual_seed(seed)
        settings: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature > 0:
            settings |= {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        if block_size > 1 and draft is None:
            settings["prompt_lookup_num_tokens"] = block_size - 1
        elif block_size > 1:
            draft.generation_config.num_assistant_tokens = block_size - 1
            settings["assistant_model"] = draft
        try:
            found = base.generate(torch.tensor(prompts), max_new_tokens=length, **settings)
        except ValueError as error:
            raise NotImplementedError(str(error)) from error
        rows = found[:, len(prompts[0]):].tolist()
        if len(rows) > 1:  # end tokens pad the rows of a batch, which has no drafts
            return [row[:row.index(END) + 1] if END in row else row for row in rows]
        return rows
    return decode


@torch.inference_mode()
def main(samples: Annotated[int, typer.Option(min=0, help="Samples of each setting.")] = 5000,
         drafts: str = "network,lookup,gemma") -> None:
    """Check generation with the drafts of another network, prompt lookup, Gemma 4's assistant."""
    transformers.logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for way in drafts.split(","):
        base, draft = networks(way)
        for temperature, top_k, top_p in SETTINGS[:None if samples else 1]:
            def p1(prompt: list[int], prefixes: list[Any]) -> Any:  # noqa: ANN401 -- a tensor
                scores = base(torch.tensor([[*prompt, *one] for one in prefixes])).logits[:, -1]  # noqa: B023 -- called at once
                return filtered(scores / temperature, top_k or None, top_p).softmax(-1)  # noqa: B023 -- as above

            print(f"\n{way}, temperature {temperature}, top-k {top_k}, nucleus {top_p}",
                  check_lossless(decoder(base, draft, top_k, top_p), PROMPTS, length=20,
                                 end_token=END, block_sizes=(2, 4), temperature=temperature,
                                 samples=samples, p1=p1), sep="\n", flush=True)


if __name__ == "__main__":
    run(main)

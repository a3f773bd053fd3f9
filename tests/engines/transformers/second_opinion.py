"""What transformers says of the project's checkpoints: run by the interpreter of an engine's environment, which has it.

Usage: second_opinion.py QUESTIONS.json NUMBERS.npz. Reads the arrays that the questions name, prints answers as JSON, and writes the
arrays that it was asked for to ANSWERS.npz beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import _speculative_sampling

torch.set_num_threads(1)
torch.manual_seed(1)


def main() -> None:
    """Answer each kind of question that was asked."""
    questions = json.loads(Path(sys.argv[1]).read_text())
    numbers = np.load(sys.argv[2])
    models = {name: loaded(questions["checkpoints"][name]) for name in ("target", "draft")}
    arrays = {
        **{f"{name}_logits_{at}": logits(models[name], prompt) for name in models for at, prompt in enumerate(questions["prompts"])},
        **{f"distribution_{at}": warped(numbers["rows"], asked) for at, asked in enumerate(questions["warped"])},
        "windows": windows(numbers["p"], numbers["q"], questions["windows"]),
    }
    np.savez(Path(sys.argv[2]).with_name("answers.npz"), **arrays)
    tokenizer = AutoTokenizer.from_pretrained(questions["checkpoints"]["target"])
    print(json.dumps([generated(models, tokenizer, **asked) for asked in questions["generated"]]))


def loaded(folder: str) -> Qwen3ForCausalLM:
    """Return a checkpoint in single precision, with no end of its own: each request says where it ends."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model.eval()


@torch.no_grad()
def logits(model: Qwen3ForCausalLM, prompt: list[int]) -> np.ndarray:
    """Return the logits after each token, (tokens, vocabulary)."""
    return model(torch.tensor([prompt])).logits[0].numpy()


def warped(rows: np.ndarray, asked: dict[str, float]) -> np.ndarray:
    """Return the distributions that a request draws from, in the order temperature, min-p, top-k, top-p."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(asked["temperature"])])
    if "min_p" in asked:
        warpers.append(MinPLogitsWarper(asked["min_p"]))
    if "top_k" in asked:
        warpers.append(TopKLogitsWarper(asked["top_k"]))
    if "top_p" in asked:
        warpers.append(TopPLogitsWarper(asked["top_p"]))
    return warpers(torch.zeros((len(rows), 1), dtype=torch.long), torch.from_numpy(rows)).softmax(dim=-1).numpy()


def windows(p: np.ndarray, q: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` windows: the accepted draft tokens and the first token of each, (count, 2).

    ``p`` is (k + 1, vocabulary) and ``q`` (k, vocabulary), both as probabilities; each draft is drawn from q anew.
    """
    target, draft = torch.from_numpy(p).log()[None], torch.from_numpy(q).log()[None]
    found = []
    for _ in range(count):
        proposed = torch.multinomial(draft[0].exp(), 1).T
        tokens, matches = _speculative_sampling(proposed, draft, proposed.shape[1], target)
        found.append((int(matches), int(tokens[0, 0])))
    return np.array(found)


@torch.no_grad()
def generated(models: dict[str, Qwen3ForCausalLM], tokenizer: AutoTokenizer, prompt: list[int], **asked: object) -> list[int]:
    """Return the tokens of a greedy answer to ``prompt``; ``allowed`` and ``assisted`` are ours, all else are names of ``generate``."""
    if (allowed := asked.pop("allowed", None)) is not None:
        asked["prefix_allowed_tokens_fn"] = lambda *_: allowed
    if asked.pop("assisted", False):
        asked["assistant_model"] = models["draft"]
    if "sequence_bias" in asked:
        asked["sequence_bias"] = [[[token], bias] for token, bias in asked["sequence_bias"]]
    if "stop_strings" in asked:
        asked["tokenizer"] = tokenizer
    ids = torch.tensor([prompt])
    answer = models["target"].generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **asked)
    return answer[0, len(prompt) :].tolist()


if __name__ == "__main__":
    main()

"""Train the reference engine's three checkpoints: target, draft model and EAGLE-3 head.

    .venv-vllm/bin/python -m training.train FOLDER [--steps 3000]

Runs where torch and transformers are: in the environment of a real engine. The tokenizer is the committed one. ``training.quality`` says
what the checkpoints are worth. A run that was cut off goes on from the last saved step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from training import corpus
from training.head import Head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKPOINTS: Final = Path(__file__).parents[1] / "specdec_reference" / "checkpoints"
_LENGTH: Final = 256
"""Tokens of a training sequence."""
_BATCH: Final = 16
_SEED: Final = 20261122
_DIALOGUES: Final = 40_000
_STEEP: Final = 3e-3
"""The highest learning rate; warm-up over the first fiftieth of the steps, then a cosine down to a tenth."""
_SAVED_EVERY: Final = 200
_DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"
_AHEAD: Final = 3
"""Steps that the head is trained to go on with its own hidden states: the training-time test of EAGLE-3."""


def tokens(tokenizer: Tokenizer) -> torch.Tensor:
    """Return the whole text as one line of ids, documents and dialogues mixed in a fixed order."""
    line = array("H")
    dialogues = map(corpus.conversation, corpus.dialogues(_SEED, _DIALOGUES))
    for document in corpus.documents():
        line.extend(tokenizer.encode(document).ids)
        line.append(0)
        for talk in itertools.islice(dialogues, 24):
            line.extend(tokenizer.encode(talk).ids)
            line.append(0)
    for talk in dialogues:
        line.extend(tokenizer.encode(talk).ids)
        line.append(0)
    return torch.tensor(line, dtype=torch.long)


def batches(text: torch.Tensor, start: int) -> Iterator[torch.Tensor]:
    """Yield (batch, length + 1) cuts of the text, drawn by the number of the step, so that a run that goes on draws what it would have."""
    for step in itertools.count(start):
        drawn = torch.Generator().manual_seed(_SEED + step)
        at = torch.randint(len(text) - _LENGTH - 1, (_BATCH,), generator=drawn)
        yield torch.stack([text[i : i + _LENGTH + 1] for i in at.tolist()]).to(_DEVICE)


def fit(folder: Path, module: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor], text: torch.Tensor, steps: int) -> None:
    """Train ``module`` by ``loss`` of a batch for ``steps``, going on from what ``folder`` holds of an earlier run."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=_STEEP, betas=(0.9, 0.95), weight_decay=0.1)
    saved, start = folder / "training.pt", 0
    if saved.is_file():
        state = torch.load(saved, map_location=_DEVICE)
        module.load_state_dict(state["module"])
        optimiser.load_state_dict(state["optimiser"])
        start = state["step"]
    began_s, warm = time.monotonic(), max(1, steps // 50)
    for step, batch in zip(range(start, steps), batches(text, start), strict=False):
        rate = min((step + 1) / warm, 0.55 + 0.45 * float(torch.cos(torch.tensor(torch.pi * step / steps))))
        for group in optimiser.param_groups:
            group["lr"] = _STEEP * rate
        value = loss(batch)
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        if (step + 1) % _SAVED_EVERY == 0 or step + 1 == steps:
            pace_s = (time.monotonic() - began_s) / (step + 1 - start)
            print(f"{folder.name} {step + 1}/{steps}: loss {value.item():.3f}, {pace_s:.2f} s a step", flush=True)
            torch.save({"module": module.state_dict(), "optimiser": optimiser.state_dict(), "step": step + 1}, saved)


def decoder(name: str) -> Qwen3ForCausalLM:
    """Return an untrained decoder of the shape of the committed checkpoint ``name``."""
    torch.manual_seed(_SEED)
    return Qwen3ForCausalLM(Qwen3Config.from_pretrained(CHECKPOINTS / name, dtype="float32")).to(_DEVICE)


def own_loss(model: Qwen3ForCausalLM) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the cross entropy of the next token."""

    def loss(batch: torch.Tensor) -> torch.Tensor:
        logits = model(batch[:, :-1]).logits
        return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    return loss


def distilled_loss(student: Qwen3ForCausalLM, teacher: Qwen3ForCausalLM) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the cross entropy against the teacher's distribution: a draft is worth what of it the target accepts."""

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            wanted = teacher(batch[:, :-1]).logits.softmax(-1)
        return functional.cross_entropy(student(batch[:, :-1]).logits.flatten(0, 1), wanted.flatten(0, 1))

    return loss


def head_loss(head: Head, teacher: Qwen3ForCausalLM) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the cross entropy against the target's distribution over :data:`_AHEAD` steps, those behind the first weighing less."""

    def loss(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen = teacher(batch, output_hidden_states=True)
            wanted = seen.logits.softmax(-1)
            states = torch.cat([seen.hidden_states[layer] for layer in head.tapped], dim=-1)
        hidden, total = head.fuse(states), torch.zeros((), device=_DEVICE)
        for ahead in range(1, _AHEAD + 1):
            # Position i holds the state behind token i and is fed token i + 1; it answers for what follows that.
            hidden = head(batch[:, ahead:], hidden[:, :-1])
            logits = head.logits(hidden)
            total = total + 0.8 ** (ahead - 1) * functional.cross_entropy(logits.flatten(0, 1), wanted[:, ahead:].flatten(0, 1))
        return total

    return loss


def write(folder: Path, like: str, tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint in float16 beside the files that it has in common with the committed one."""
    for path in (CHECKPOINTS / like).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder / path.name)
    save_file(
        {name: tensor.detach().to("cpu", torch.float16).contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
    )


def main() -> None:
    """Train what the folder lacks."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where to write target/, draft/ and eagle3/")
    parser.add_argument("--steps", type=int, default=3000, help="of the target; the draft and the head take half as many")
    options = parser.parse_args()
    text = tokens(Tokenizer.from_file(str(CHECKPOINTS / "target" / "tokenizer.json")))
    print(f"{len(text):,} tokens of text", flush=True)
    for name in ("target", "draft", "eagle3"):
        (options.folder / name).mkdir(parents=True, exist_ok=True)
    target = decoder("target")
    fit(options.folder / "target", target, own_loss(target), text, options.steps)
    write(options.folder / "target", "target", _own(target))
    target.requires_grad_(requires_grad=False)
    draft = decoder("draft")
    fit(options.folder / "draft", draft, distilled_loss(draft, target), text, options.steps // 2)
    write(options.folder / "draft", "draft", _own(draft))
    head = Head(json.loads((CHECKPOINTS / "eagle3" / "config.json").read_text()), target.model.embed_tokens.weight).to(_DEVICE)
    fit(options.folder / "eagle3", head, head_loss(head, target), text, options.steps // 2)
    write(options.folder / "eagle3", "eagle3", head.tensors())


def _own(model: Qwen3ForCausalLM) -> dict[str, torch.Tensor]:
    """Return the tensors by name, the output matrix left out: it is the embedding."""
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


if __name__ == "__main__":
    main()

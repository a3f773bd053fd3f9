"""The worth of checkpoints: ``python -m training.quality [FOLDER]``, beside the committed ones.

Text that no training saw: dialogues of another seed, and the prompts of the suites. The loss is in nats a token. A drafter is worth the
tokens of a verify step at temperature 0. An answer ends naturally where the model itself ends it within 128 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.model.workload import Route
from pytest_specdec.prompts import ALL
from specdec_reference import checkpoint, model
from specdec_reference.cli import ServerSettings, Speculation
from specdec_reference.engine import ReferenceEngine
from specdec_reference.openai_request import EngineRequest
from specdec_reference.tokenizer import Tokenizer
from training import corpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.prompts.prompts import Prompt
    from specdec_reference.sequence import RunningSequence

_UNSEEN: Final = 7
_DIALOGUES: Final = 60
_TOKENS: Final = 128
_SPEC_TOKENS: Final = 3
_PROMPTS: Final = 48


def main() -> None:
    """Print a table: a line per figure, a column per set of checkpoints."""
    parser = argparse.ArgumentParser(prog="python -m training.quality", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?", help="checkpoints to compare with the committed ones")
    options = parser.parse_args()
    folders = {"committed": checkpoint.PACKAGED, **({options.folder.name: options.folder} if options.folder else {})}
    columns = {name: dict(figures(folder)) for name, folder in folders.items()}
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for figure in next(iter(columns.values())):
        print(f"| {figure} | " + " | ".join(f"{column[figure]:.2f}" for column in columns.values()) + " |")


def figures(folder: Path) -> Iterator[tuple[str, float]]:
    """Yield name and value of every figure of the checkpoints in ``folder``."""
    target = checkpoint.read(str(folder / "target"))
    tokenizer = Tokenizer(target.folder, target.shape.vocabulary)
    talks = [tokenizer.encode(corpus.conversation(messages)) for messages in corpus.dialogues(_UNSEEN, _DIALOGUES)]
    prompts = {prompt.id: _ids(prompt, tokenizer) for prompt in ALL.items[:_PROMPTS]}
    chats = [prompt.route is Route.CHAT for prompt in ALL.items[:_PROMPTS]]
    for name in ("target", "draft"):
        loaded = model.load(checkpoint.read(str(folder / name)), 1024)
        yield f"loss of the {name} on dialogues, nats a token", float(np.mean([loss(loaded, talk) for talk in talks]))
    for title, speculation in drafters(folder).items():
        answers = answered(folder, speculation, list(prompts.values()))
        steps = sum(len(sequence.accepted) for sequence in answers)
        yield f"tokens a step, {title}", 1.0 + sum(sum(sequence.accepted) for sequence in answers) / steps
    talked = [sequence for sequence, chat in zip(answers, chats, strict=True) if chat]
    yield "answers in conversations that end naturally, of one", float(np.mean([s.finish_reason == "stop" for s in talked]))
    yield "different answers in conversations, of one", len({tuple(s.emitted) for s in talked}) / len(talked)
    yield "tokens of an answer, mean", float(np.mean([len(sequence.emitted) for sequence in answers]))


def drafters(folder: Path) -> dict[str, Speculation]:
    """Return the speculative settings by title."""
    return {
        "draft model": Speculation(method="draft_model", tokens=_SPEC_TOKENS, model=str(folder / "draft")),
        "EAGLE-3 head": Speculation(method="eagle3", tokens=_SPEC_TOKENS, model=str(folder / "eagle3")),
    }


def loss(loaded: model.Model, tokens: Sequence[int]) -> float:
    """Return the mean negative log-probability of a text's tokens, in nats."""
    hidden = loaded.forward(np.array([tokens], np.intp), loaded.cache(1), np.zeros(1, np.intp))
    logits = loaded.logits(hidden)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    emitted = logits[np.arange(len(logits)), np.array(tokens[1:])]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - emitted))


def answered(folder: Path, speculation: Speculation, prompts: Sequence[tuple[int, ...]]) -> list[RunningSequence]:
    """Return the answers to prompts at temperature 0, with their verify steps."""
    engine = ReferenceEngine(ServerSettings(model=str(folder / "target"), speculation=speculation))
    ended: SimpleQueue[RunningSequence] = SimpleQueue()
    engine.start(lambda deltas: [ended.put(delta.sequence) for delta in deltas if delta.finish_reason is not None] and None)
    requests = [EngineRequest(prompt=prompt, max_tokens=_TOKENS, temperature=0.0) for prompt in prompts]
    sequences = [engine.sequences(request, lambda _: None)[0] for request in requests]
    engine.submit(tuple(sequences))
    for _ in sequences:
        ended.get()
    engine.stop()
    return sequences


def _ids(prompt: Prompt, tokenizer: Tokenizer) -> tuple[int, ...]:
    chat = prompt.route is Route.CHAT
    return tokenizer.encode(tokenizer.format_chat([{"role": "user", "content": prompt.text}]) if chat else prompt.text)


if __name__ == "__main__":
    main()

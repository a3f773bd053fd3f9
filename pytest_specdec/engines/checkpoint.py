"""A checkpoint's folder on this machine: whether it is there, its size, and its vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config

__all__ = ["gib", "same_vocabulary", "there", "vocabulary"]


def there(config: Config) -> None:
    """Raise EngineError when the model is a path, which no name of a hub is, and nothing is there."""
    model = config.engine.model
    if model.startswith((".", "/", "~")) and not Path(config.resolve(model)).exists():
        raise EngineError(
            what="the model is not there",
            where=f"{config.path}: engine.model",
            found=f"no folder {model}",
            expected="a checkpoint's folder, absolute or relative to the config",
            remedy="correct the path, or make the checkpoint as the config's comment says",
        )


def gib(folder: Path) -> float | None:
    """Return the size of a checkpoint's weights; None where there is no such folder, or no weights in it."""
    sizes = [path.stat().st_size for pattern in ("*.safetensors", "*.bin", "*.gguf") for path in folder.glob(pattern)]
    return sum(sizes) / 1024**3 if sizes else None


def same_vocabulary(draft: Path, target: Path, where: str) -> None:
    """Raise EngineError when both checkpoints are folders here and their vocabularies differ in size; ``where`` names the draft model's."""
    draft_tokens, target_tokens = vocabulary(draft), vocabulary(target)
    if draft_tokens and target_tokens and draft_tokens != target_tokens:
        raise EngineError(
            what="the draft model has another vocabulary than the target",
            where=where,
            found=f"vocab_size {draft_tokens:,} in {draft}",
            expected=f"vocab_size {target_tokens:,}, as in {target}",
            remedy="name a draft model of the target's family, trained with its tokenizer",
        )


def vocabulary(folder: Path) -> int:
    """Return ``vocab_size`` of a checkpoint folder, that of its text model where it has several; 0 where unknown."""
    try:
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return int(described.get("vocab_size") or described.get("text_config", {}).get("vocab_size") or 0)
    except (OSError, ValueError):
        return 0

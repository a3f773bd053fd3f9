"""A checkpoint's folder on this machine, the hub's cache included: whether it exists, its size, and its vocabulary."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

_QUANTISED = frozenset({"quantization", "quantization_config", "compression_config"})
"""Keys of a config.json: of mlx-lm, of transformers, and of compressed-tensors before it took the key of transformers."""

_VISION = frozenset(
    {"vision_config", "visual", "vision_tower", "mm_vision_tower", "vision_tower_config", "image_token_id", "image_token_index"}
)
"""Keys of a config.json: of transformers' models with a vision part, and of older ones in their own formats."""


def require_model(config: Config) -> None:
    """Raise EngineError if the model's path does not exist.

    A model is a path if it begins with ``.``, ``/`` or ``~``; no name on the hub does.
    """
    model = config.engine.model
    if model.startswith((".", "/", "~")) and not Path(config.resolve(model)).exists():
        raise EngineError(
            what="the model is not there",
            where=f"{config.path}: engine.model",
            found=f"no folder {model}",
            expected="a checkpoint's folder, absolute or relative to the config",
            remedy="correct the path, or make the checkpoint as the config's comment says",
        )


def gib(checkpoint: Path) -> float | None:
    """Return the size of a checkpoint's weights in GiB.

    Returns None without such a folder, or without weights in it.
    """
    paths = (path for pattern in ("*.safetensors", "*.bin", "*.gguf") for path in checkpoint.glob(pattern))
    sizes = [path.stat().st_size for path in paths if path.exists()]  # a broken link of the hub's cache leads nowhere
    return sum(sizes) / 1024**3 if sizes else None


def weights_gib(checkpoint: Path) -> float | None:
    """Return a lower bound of the weights that a server loads, in GiB.

    Checkpoints may hold the same weights in several formats: as safetensors, as ``.bin`` and as Mistral's
    ``consolidated*``. A server loads one of them, so that the smallest counts; :func:`gib` adds all files up. A format with
    a broken link is not complete, and does not count. Returns None without weights.
    """
    safetensors = [path for path in checkpoint.glob("*.safetensors") if not path.name.startswith("consolidated")]
    formats = (safetensors, list(checkpoint.glob("*.bin")), list(checkpoint.glob("consolidated*.safetensors")))
    sizes = [sum(path.stat().st_size for path in paths) for paths in formats if paths and all(path.exists() for path in paths)]
    return min(sizes) / 1024**3 if sizes else None


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Return the folder of huggingface_hub's model cache.

    ``environ`` are the variables of the process that uses the cache.
    """
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or Path(home) / "hub").expanduser()


def folder(config: Config, model: str) -> Path:
    """Return the folder of a config's ``model`` on this machine.

    Returns a path that does not exist if the model is not here, as :func:`find_folder` does.
    """
    return find_folder(config.resolve(model), {**os.environ, **config.engine.env})


def find_folder(model: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of ``model`` for a server with the variables ``environ``.

    This is ``model`` itself if it is a path, else the newest snapshot of that name in the hub's cache, which those
    variables may place elsewhere. Without either, ``model`` is returned as a path, which does not exist.
    """
    path = Path(model)
    snapshots_folder = hub_cache(environ) / f"models--{model.replace('/', '--')}" / "snapshots"
    snapshots = [] if path.exists() else sorted(snapshots_folder.glob("*"), key=lambda snapshot: snapshot.stat().st_mtime)
    return next(iter(snapshots[-1:]), path)


def require_same_vocabulary(draft: Path, target: Path, where: str, *, bridge: str = "") -> None:
    """Raise EngineError if two checkpoints' vocabularies differ in size.

    Nothing is raised if one of the folders, or its config.json, is not on this machine. ``where`` is the place of the
    draft model in the config. ``bridge`` names settings with which the engine takes such a pair all the same.
    """
    draft_tokens, target_tokens = vocabulary(draft), vocabulary(target)
    if draft_tokens and target_tokens and draft_tokens != target_tokens:
        raise EngineError(
            what="the draft model has another vocabulary than the target",
            where=where,
            found=f"vocab_size {draft_tokens:,} in {draft}",
            expected=f"vocab_size {target_tokens:,}, as in {target}",
            remedy="name a draft model of the target's family, trained with its tokenizer" + (f"; or set {bridge}" if bridge else ""),
        )


def vocabulary(checkpoint: Path) -> int:
    """Return ``vocab_size`` of a checkpoint folder; 0 if unknown.

    Multimodal checkpoints may have it in the ``text_config`` of their config.json, which is read second.
    """
    settings = read_config(checkpoint)
    text_config = settings.get("text_config")
    size = settings.get("vocab_size") or (text_config.get("vocab_size") if isinstance(text_config, Mapping) else 0)
    return size if isinstance(size, int) else 0


def read_config(checkpoint: Path) -> Mapping[str, JSON]:
    """Return the config.json of a checkpoint folder.

    Returns an empty mapping if it has none that can be read.
    """
    try:
        settings = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, Mapping) else {}


def takes_images(checkpoint: Path) -> bool | None:
    """Return True if a checkpoint's config.json has a vision part.

    Returns None without a config.json that can be read.
    """
    settings = read_config(checkpoint)
    return not _VISION.isdisjoint(settings) if settings else None


_OVERRIDES = ("hf-overrides", "json-model-override-args")
"""Arguments laid over a config.json: of vLLM, and of SGLang."""


def describe_positions(config: Config) -> str:
    """Return the scaling of a model's positions and its sliding window, in words.

    Both are read from the model's config.json on this machine, with the engine's arguments that override its fields laid
    over it. A multimodal model has the fields of its language part in ``text_config``. Empty for neither, and if unknown.
    """
    settings: dict[str, JSON] = {}
    for layer in (read_config(folder(config, config.engine.model)), *(config.engine.args.get(name) for name in _OVERRIDES)):
        if isinstance(layer, Mapping):
            text_config = layer.get("text_config")
            settings |= {**layer, **(text_config if isinstance(text_config, Mapping) else {})}
    return ", ".join(filter(None, (_describe_stretching(settings), _describe_window(settings))))


def _describe_stretching(settings: Mapping[str, JSON]) -> str:
    """Return the scaling of rotary positions: ``YaRN x4 over 32,768 positions``; empty without.

    ``settings`` are those of config.json. The number of positions is the one that the model was trained for, and is left out,
    as the factor is, if config.json lacks it.
    """
    rope = settings.get("rope_scaling") or settings.get("rope_parameters")
    kind = (rope.get("rope_type") or rope.get("type")) if isinstance(rope, Mapping) else None
    if not isinstance(rope, Mapping) or not isinstance(kind, str) or kind == "default":
        return ""
    name = {"yarn": "YaRN"}.get(kind, kind)
    original = rope.get("original_max_position_embeddings")
    original_length = f" over {original:,} positions" if isinstance(original, int) else ""
    return f"{name} x{rope['factor']}{original_length}" if "factor" in rope else f"{name}{original_length}"


def _describe_window(settings: Mapping[str, JSON]) -> str:
    """Return a sliding window in words; empty without one in use.

    An example is ``sliding window of 4,096 tokens in 12 of 24 layers``. The layers are counted only if config.json lists
    every layer's kind. A window that it switches off, or that no layer has, is not in use.
    """
    window, layers = settings.get("sliding_window"), settings.get("layer_types")
    kinds = layers if isinstance(layers, list) else []
    if not isinstance(window, int) or settings.get("use_sliding_window") is False or (kinds and "sliding_attention" not in kinds):
        return ""
    return f"sliding window of {window:,} tokens" + (f" in {kinds.count('sliding_attention')} of {len(kinds)} layers" if kinds else "")


def is_quantised(checkpoint: Path) -> bool:
    """Return True if a checkpoint's files declare quantisation.

    They do by a key of config.json or of its ``text_config``, the language part of a multimodal model, or by the presence of
    ``hf_quant_config.json``. A ``.gguf`` path counts as quantised. Returns False without such files.
    """
    settings = read_config(checkpoint)
    text_config = settings.get("text_config")
    stated = {**settings, **(text_config if isinstance(text_config, Mapping) else {})}
    return (
        any(stated.get(key) is not None for key in _QUANTISED)
        or (checkpoint / "hf_quant_config.json").exists()
        or checkpoint.suffix == ".gguf"
    )

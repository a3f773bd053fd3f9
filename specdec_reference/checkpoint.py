"""A checkpoint: a folder in Hugging Face layout, found by name or path and read into float32 arrays."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON

ARCHITECTURE: Final = "Qwen3ForCausalLM"
EAGLE3: Final = "LlamaForCausalLMEagle3"
"""The architecture of a head, which has no tokenizer of its own."""
PACKAGED: Final = Path(__file__).parent / "checkpoints"
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Fields of a generation_config.json that vLLM takes as defaults of requests (``ModelConfig.get_diff_sampling_param``)."""
_FILES: Final = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a Qwen3 decoder, as its config.json states them."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    positions: int
    """``max_position_embeddings``: the longest sequence it was made for, in tokens."""
    rope_theta: float
    norm_epsilon: float
    eos_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The contents of a folder."""

    folder: Path
    shape: Shape
    tensors: Mapping[str, NDArray[np.float32]]
    """By Hugging Face name, matrices as (out, in)."""


def locate(model: str, architecture: str = ARCHITECTURE) -> Path:
    """Return the folder of a checkpoint by packaged name or path.

    Raises EngineError when there is no such folder, or when it lacks a file.
    """
    files = _FILES if architecture == ARCHITECTURE else _FILES[:2]  # an EAGLE head has no tokenizer
    packaged = sorted(p.name for p in PACKAGED.iterdir() if p.is_dir())
    if model in packaged:
        return PACKAGED / model
    folder = Path(model).expanduser()
    missing_files = [name for name in files if not (folder / name).is_file()]
    if not missing_files:
        return folder
    similar = difflib.get_close_matches(model, packaged, n=1)
    raise EngineError(
        what=f"no checkpoint {model!r}",
        where=str(folder.absolute()),
        found="no such folder" if not folder.is_dir() else f"a folder without {', '.join(missing_files)}",
        expected=f"a packaged checkpoint ({', '.join(packaged)}) or a folder with {', '.join(files)}",
        remedy=f"did you mean {similar[0]!r}?" if similar else "name a packaged checkpoint or give the path of a Hugging Face folder",
    )


def read(model: str, architecture: str = ARCHITECTURE, overrides: Mapping[str, JSON] = MappingProxyType({})) -> Checkpoint:
    """Return the checkpoint of a packaged name or path.

    ``overrides`` are laid over its config.json. Raises EngineError when it is missing, has another architecture, or holds weights of an
    unsupported type.
    """
    folder = locate(model, architecture)
    shape = _read_shape(folder / "config.json", architecture, overrides)
    return Checkpoint(folder=folder, shape=shape, tensors=_load_tensors(folder / "model.safetensors"))


def read_defaults(folder: Path) -> Mapping[str, JSON]:
    """Return the sampling parameters of a generation_config.json; empty without any."""
    path = folder / "generation_config.json"
    stated = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return {name: stated[name] for name in _SAMPLING if stated.get(name) is not None}


def _read_shape(path: Path, architecture: str, overrides: Mapping[str, JSON]) -> Shape:
    """Return the sizes stated in a config.json, ``overrides`` laid over it.

    Raises EngineError for an unsupported checkpoint.
    """
    config = json.loads(path.read_text("utf-8")) | dict(overrides)
    _refuse_unsupported(path, config, architecture)
    eos = config["eos_token_id"]
    rope = config.get("rope_parameters") or config
    return Shape(
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        vocabulary=config["vocab_size"],
        positions=config["max_position_embeddings"],
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        norm_epsilon=config["rms_norm_eps"],
        eos_ids=tuple(eos) if isinstance(eos, list) else (eos,),
    )


def _refuse_unsupported(path: Path, config: Mapping[str, object], architecture: str) -> None:
    """Raise EngineError for an unsupported setting of a config.json."""
    supported: Mapping[str, tuple[object, ...]] = {
        "architectures": ([architecture],),
        "attention_bias": (None, False),
        "hidden_act": ("silu",),
        "rope_scaling": (None,),
        "use_sliding_window": (None, False),
    }
    for key, values in supported.items():
        if config.get(key) not in values:
            raise EngineError(
                what="the reference engine cannot run this checkpoint",
                where=f"{path}: {key}",
                found=json.dumps(config.get(key)),
                expected=json.dumps(values[-1]),
                remedy=f"use a checkpoint of {architecture}, or an engine that supports this one",
            )


def _load_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the weights by name, as float32; raise EngineError if they cannot be read."""
    import numpy as np  # noqa: PLC0415 - after __main__ has set the BLAS threads
    from safetensors import SafetensorError  # noqa: PLC0415 - an optional library
    from safetensors.numpy import load_file  # noqa: PLC0415 - an optional library

    try:
        stored = load_file(path)
    except (SafetensorError, TypeError, AttributeError) as error:
        raise EngineError(
            what="weights cannot be read",
            where=str(path),
            found=str(error),
            expected="safetensors in float16 or float32",
            remedy="save the checkpoint again with dtype float16",
        ) from error
    return {name: tensor.astype(np.float32) for name, tensor in stored.items()}

"""LoRA adapters (Hu et al. 2021): low-rank matrices that are added to those of the target, for the lines of some rows alone.

An adapter is a folder in PEFT's layout, or ``random:SEED``: a right one of this engine's own that needs no file. ``python -m
specdec_reference.adapters target FOLDER --seed 7`` writes the same as a folder, for other engines.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from pytest_specdec.errors import EngineError, SpecdecError
from specdec_reference import checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from specdec_reference.checkpoint import Checkpoint, Shape

    Factors: TypeAlias = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
    """A (rank, in) and B (out, rank), which is scaled, by the full name of the projection."""

RANDOM: Final = "random:"
RANK: Final = 8
_ALPHA: Final = 16
_STRENGTH: Final = 0.9
"""Size of what a random adapter adds, as a share of the matrix: answers differ from the model's own after a few tokens."""
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX: Final = "base_model.model."
_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The projections that share a matrix in :class:`specdec_reference.model.Layer`, by its field."""
_NORMS: Final = {"qkv": "input_layernorm", "gate_up": "post_attention_layernorm"}
"""Norms that are folded into these matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """What an adapter adds to one matrix, as two factors."""

    a: NDArray[np.float32]
    """(in, rank)."""
    b: NDArray[np.float32]
    """(rank, out), scaled."""

    def add(self, fed: NDArray[np.float32], result: NDArray[np.float32], lines: NDArray[np.intp]) -> None:
        """Add the adapter's part to some lines of a product, in place.

        ``result`` is the matrix's own product with ``fed``; both have a line for each token of the forward. ``lines`` are the indices of
        the adapter's tokens among them.
        """
        result[lines] += (fed[lines] @ self.a) @ self.b


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter: by layer and by matrix what it adds."""

    name: str
    layers: tuple[Mapping[str, LowRank], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLines:
    """The lines of a forward, one for each token fed, that one adapter answers."""

    adapter: Adapter
    lines: NDArray[np.intp]

    def add(self, layer: int, matrix: str, fed: NDArray[np.float32], result: NDArray[np.float32]) -> None:
        """Add the adapter's part to the product of a layer's ``matrix`` with ``fed``, in place."""
        # Layers that pad the target are beyond those of the adapter.
        factors = self.adapter.layers[layer].get(matrix) if layer < len(self.adapter.layers) else None
        if factors is not None:
            factors.add(fed, result, self.lines)


def select_lines(names: Sequence[str], adapters: Mapping[str, Adapter]) -> tuple[AdaptedLines, ...]:
    """Return the lines of each adapter among ``names``, one name a line; empty names have none."""
    chosen = np.array(names, object)
    return tuple(AdaptedLines(adapter=adapters[name], lines=np.flatnonzero(chosen == name)) for name in dict.fromkeys(names) if name)


def load(modules: Sequence[str], target: Checkpoint) -> dict[str, Adapter]:
    """Return the adapters of ``name=path`` entries, by name.

    Raises EngineError for an entry in another form, a name that comes twice, a folder that is no plain LoRA
    adapter, and one of another model than ``target``.
    """
    adapters: dict[str, Adapter] = {}
    for module in modules:
        name, equals, path = module.partition("=")
        if not (name and equals and path) or name in adapters:
            entry = module + (", a name that is taken" if name in adapters else "")
            raise EngineError(what="no adapter", where="--lora-modules", found=entry, expected="NAME=PATH or NAME=random:SEED")
        factors = _draw_factors(path, target) if path.startswith(RANDOM) else _read_factors(Path(path))
        _require_sizes(factors, target, path)
        adapters[name] = Adapter(name=name, layers=tuple(_fuse_layer(factors, target, index) for index in range(target.shape.layers)))
    return adapters


def _draw_factors(source: str, target: Checkpoint) -> Factors:
    """Return the factors of ``random:SEED`` for every projection of ``target``.

    They are the pair A and B by the projection's name, drawn from a normal distribution. B is multiplied by LoRA's alpha / rank, so that
    B A is what the adapter adds. Its Frobenius norm is ``_STRENGTH`` times that of the matrix. Raises EngineError for another seed than a
    number.
    """
    seed = source.removeprefix(RANDOM)
    if not seed.isdecimal():
        raise EngineError(what="no adapter", where="--lora-modules", found=source, expected="random: and a whole number")
    random = np.random.Generator(np.random.SFC64(int(seed)))
    factors: dict[str, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
    for index in range(target.shape.layers):
        for projection in (name for group in _GROUPS.values() for name in group):
            weight = target.tensors[f"model.layers.{index}.{projection}.weight"]
            a = random.standard_normal((RANK, weight.shape[1]), dtype=np.float32)
            b = random.standard_normal((weight.shape[0], RANK), dtype=np.float32)
            size = np.linalg.norm(b @ a) * (_ALPHA / RANK)
            factors[f"model.layers.{index}.{projection}"] = a, b * np.float32(_STRENGTH * np.linalg.norm(weight) / size)
    return {name: (a, b * np.float32(_ALPHA / RANK)) for name, (a, b) in factors.items()}


def _read_factors(folder: Path) -> Factors:
    """Return the factors of a folder in PEFT's layout.

    They are the pair A and B by the projection's name, B multiplied by LoRA's scale. Raises EngineError if the folder is missing, or is
    something else than plain LoRA.
    """
    from safetensors.numpy import load_file  # noqa: PLC0415 - an optional library

    missing = [name for name in (_CONFIG, _WEIGHTS) if not (folder / name).is_file()]
    if missing:
        contents = f"{folder} without {', '.join(missing)}"
        raise EngineError(what="no adapter", where="--lora-modules", found=contents, expected="a folder that PEFT saved, or random:SEED")
    config = json.loads((folder / _CONFIG).read_text("utf-8"))
    if config.get("peft_type") != "LORA" or config.get("use_dora") or config.get("bias", "none") != "none":
        raise EngineError(what="no plain LoRA adapter", where=str(folder / _CONFIG), found=str(config.get("peft_type")), expected="LORA")
    scale = np.float32(config["lora_alpha"] / (config["r"] ** 0.5 if config.get("use_rslora") else config["r"]))
    tensors = {name.removeprefix(_PREFIX): tensor.astype(np.float32) for name, tensor in load_file(folder / _WEIGHTS).items()}
    names = [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]
    return {name: (tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] * scale) for name in names}


def _require_sizes(factors: Factors, target: Checkpoint, path: str) -> None:
    """Raise EngineError unless each product of two factors has the shape of a projection of ``target``."""
    projections = {f"model.layers.{at}.{name}" for at in range(target.shape.layers) for group in _GROUPS.values() for name in group}
    for name, (a, b) in factors.items():
        # Factors of different ranks have no product: both shapes are reported then.
        shape = (b.shape[0], a.shape[1]) if b.shape[1] == a.shape[0] else (b.shape, a.shape)
        expected = target.tensors[f"{name}.weight"].shape if name in projections else "no adapter for it"
        if shape != expected:
            raise EngineError(what="an adapter of another model", where=f"{path}: {name}", found=str(shape), expected=str(expected))


def _fuse_layer(factors: Factors, target: Checkpoint, index: int) -> Mapping[str, LowRank]:
    """Return an adapter's part of one layer, by the layer's own matrices.

    A matrix of a layer holds several projections, as query, key and value. One to whose projections the adapter adds nothing is left out.
    """
    layer: dict[str, LowRank] = {}
    for matrix, projections in _GROUPS.items():
        names = [f"model.layers.{index}.{projection}" for projection in projections]
        if any(name in factors for name in names):
            # Needed of projections without factors, too: their columns are zero.
            outs = [target.tensors[f"{name}.weight"].shape[0] for name in names]
            layer[matrix] = _fuse_group(matrix, [factors.get(name) for name in names], outs, target, index)
    return layer


def _fuse_group(
    matrix: str,
    pairs: Sequence[tuple[NDArray[np.float32], NDArray[np.float32]] | None],
    outs: Sequence[int],
    target: Checkpoint,
    index: int,
) -> LowRank:
    """Return the factors of projections that share one matrix.

    ``pairs`` has each projection's two factors, None for one without; ``outs`` its width, the columns that it has in
    ``b``. The factors A are stacked, and ``b`` is block-diagonal, so that no projection gets another one's part. As in the
    matrix, the norm before it is folded in, a head's query and key columns are interleaved, and the gate's half is halved.
    """
    rank = sum(a.shape[0] for a, _ in filter(None, pairs))
    fused = np.zeros((rank, sum(outs)), np.float32)
    row, column, inputs = 0, 0, []
    for place, (pair, width) in enumerate(zip(pairs, outs, strict=True)):
        if pair is not None:
            a, b = pair
            fused[row : row + len(a), column : column + width] = _arrange(matrix, place, b, target.shape).T
            inputs.append(a)
            row += len(a)
        column += width
    stacked = np.concatenate(inputs)
    if matrix in _NORMS:
        stacked = stacked * target.tensors[f"model.layers.{index}.{_NORMS[matrix]}.weight"]
    return LowRank(a=np.ascontiguousarray(stacked.T), b=fused)


def _arrange(matrix: str, place: int, b: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """Return factor B (out, rank) of one projection, its lines as those of the matrix.

    The gate's factor is halved, and the query's and the key's are interleaved; others stay. ``place`` is the projection's
    index in ``matrix``: the gate is the first of its matrix, the value the last.
    """
    if matrix == "gate_up" and place == 0:
        return b * np.float32(0.5)
    if matrix != "qkv" or place == len(_GROUPS["qkv"]) - 1:
        return b
    pairs = np.arange(shape.head_dim).reshape(2, -1).T.ravel()  # as in model.fuse_layer
    return b.reshape(-1, shape.head_dim, b.shape[-1])[:, pairs].reshape(b.shape)


def write(model: str, folder: Path, seed: int) -> None:
    """Write the adapter ``random:seed`` of a model in PEFT's layout."""
    from safetensors.numpy import save_file  # noqa: PLC0415 - an optional library

    factors = _draw_factors(f"{RANDOM}{seed}", checkpoint.read(model))
    scale = np.float32(_ALPHA / RANK)
    tensors = {f"{_PREFIX}{name}.lora_A.weight": a for name, (a, _) in factors.items()}
    # Who reads the folder multiplies B by the scale.
    tensors |= {f"{_PREFIX}{name}.lora_B.weight": b / scale for name, (_, b) in factors.items()}
    modules = sorted(projection.rpartition(".")[2] for group in _GROUPS.values() for projection in group)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": _ALPHA, "lora_dropout": 0.0, "bias": "none"}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    text = json.dumps({**config, "target_modules": modules, "base_model_name_or_path": model}, indent=1)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Write an adapter and return the exit code."""
    parser = ArgumentParser(prog="python -m specdec_reference.adapters", allow_abbrev=False, description=__doc__)
    parser.add_argument("model", help="a checkpoint that comes with the package, or the path of a Qwen3 folder")
    parser.add_argument("folder", type=Path, help="where to write the adapter")
    parser.add_argument("--seed", type=int, default=1, help="another adapter for every number (default 1)")
    options = parser.parse_args(arguments)
    try:
        write(options.model, options.folder, options.seed)
    except SpecdecError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return 2
    print(f"{options.folder}: rank {RANK}, seed {options.seed}")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

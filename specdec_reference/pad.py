"""Padding: the same model with identity layers that cost time, in memory and as a checkpoint.

``python -m specdec_reference.pad target FOLDER --layers 48`` writes the checkpoint. The attention and MLP of a further layer are
multiplied by zero before they reach the residual, in whichever engine runs it. ``--float32`` writes single precision, for engines that
compute in whatever a checkpoint is stored in.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from pytest_specdec.errors import EngineError, SpecdecError
from specdec_reference.checkpoint import locate
from specdec_reference.model import Layer, Model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

LAYERS: Final = 48
_WRONG_USAGE: Final = 2
_SEED: Final = 20231121
_SPREAD: Final = 0.02
_SILENT: Final = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
"""The matrices through which a layer adds to the residual."""


def pad_model(model: Model, layers: int) -> Model:
    """Return the model padded to ``layers`` with random identity layers.

    Their output projections are zero, so the logits are the same bit for bit.
    """
    random = np.random.Generator(np.random.SFC64(_SEED))
    return replace(model, layers=(*model.layers, *(_idle_layer(model, random) for _ in range(layers - len(model.layers)))))


def _idle_layer(model: Model, random: np.random.Generator) -> Layer:
    """Return a random layer with output projections of zero."""
    shape = model.shape

    def weights(out: int) -> NDArray[np.float32]:
        matrix = random.random((shape.hidden, out), dtype=np.float32)
        matrix -= np.float32(0.5)
        matrix *= np.float32(_SPREAD)
        return matrix

    def zeros(inner: int) -> NDArray[np.float32]:
        # Written, not np.zeros: pages that were never written are all one page, and would be read from the first-level cache.
        return np.full((inner, shape.hidden), 0.0, np.float32)

    heads = shape.heads + shape.kv_heads
    return Layer(
        qkv=weights((heads + shape.kv_heads) * shape.head_dim),
        head_scale=np.full((heads, shape.head_dim), shape.head_dim**-0.5, np.float32),
        out=zeros(shape.heads * shape.head_dim),
        gate_up=weights(2 * shape.intermediate),
        down=zeros(shape.intermediate),
    )


def main(arguments: Sequence[str]) -> int:
    """Write the checkpoint and return the exit code.

    A checkpoint that is there already is left as it is.
    """
    parser = ArgumentParser(prog="python -m specdec_reference.pad", allow_abbrev=False, description=__doc__)
    parser.add_argument("model", help="a checkpoint that comes with the package, or the path of a Qwen3 folder")
    parser.add_argument("folder", type=Path, help="where to write; a new folder")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"layers in all (default: {LAYERS})")
    parser.add_argument("--float32", action="store_true", help="write the weights in single precision")
    options = parser.parse_args(arguments)
    try:
        is_new = write(options.model, options.layers, options.folder, single=options.float32)
    except SpecdecError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return _WRONG_USAGE
    print(f"{options.folder}: {options.layers} layers{'' if is_new else ', as it was'}")  # noqa: T201 - as above
    return 0


def write(model: str, layers: int, folder: Path, *, single: bool = False) -> bool:
    """Write ``model`` with identity layers into ``folder``.

    It has ``layers`` layers in all, in single precision or as it is stored. Returns False where that
    checkpoint is there already.

    Raises EngineError for fewer layers than the model has, and when ``folder`` holds something else.
    """
    source = locate(model)
    config = {**_padded_config(source, layers), **({"dtype": "float32"} if single else {})}
    if folder.exists():
        _refuse_used_folder(folder, config)
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        shutil.copytree(source, unfinished, ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
        (unfinished / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        _write_tensors(source, layers, unfinished, single=single)
        unfinished.rename(folder)  # only once it is complete
    return True


def _padded_config(source: Path, layers: int) -> dict[str, object]:
    """Return the config.json with ``layers`` layers.

    Raises EngineError for fewer layers than the model has.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    original_layers = config["num_hidden_layers"]
    if layers < original_layers:
        raise EngineError(
            what="padding adds layers and takes none away",
            where="--layers",
            found=str(layers),
            expected=f"at least {original_layers}, those of {source}",
        )
    layer_types = (
        {"layer_types": [*config["layer_types"], *["full_attention"] * (layers - original_layers)]} if "layer_types" in config else {}
    )
    return {**config, **layer_types, "num_hidden_layers": layers}


def _refuse_used_folder(folder: Path, config: Mapping[str, object]) -> None:
    """Raise EngineError for a folder with other contents."""
    path = folder / "config.json"
    if not path.is_file() or json.loads(path.read_text(encoding="utf-8")) != config:
        raise EngineError(
            what="the folder is in use",
            where=str(folder),
            found="another checkpoint" if path.is_file() else "something else",
            expected="a new folder, or one that this command wrote from the same model with as many layers",
            remedy="name another folder, or remove this one",
        )


def _write_tensors(source: Path, layers: int, folder: Path, *, single: bool) -> None:
    """Write the weights of the padded checkpoint."""
    from safetensors.numpy import load_file, save_file  # noqa: PLC0415 - an optional library

    original = load_file(source / "model.safetensors")
    original_layers = json.loads((source / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"]
    path = folder / "model.safetensors"
    tensors = {**original, **dict(_added_layers(original, range(original_layers, layers)))}
    save_file({name: t.astype(np.float32) for name, t in tensors.items()} if single else tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors leaves it to its owner alone


def _added_layers(original: Mapping[str, NDArray[np.float16]], indices: range) -> Iterator[tuple[str, NDArray[np.float16]]]:
    """Yield the tensors of further layers by name.

    Their shapes are those of the first layer: random matrices, norms of one, and zeros where a layer would
    add to the residual.
    """
    first = "model.layers.0."
    random = np.random.Generator(np.random.SFC64(_SEED))
    for index in indices:
        for name, tensor in original.items():
            if name.startswith(first):
                matrix_name = name.removeprefix(first)
                yield f"model.layers.{index}.{matrix_name}", _fill_matrix(matrix_name, tensor, random)


def _fill_matrix(name: str, original: NDArray[np.float16], random: np.random.Generator) -> NDArray[np.float16]:
    """Return the weights of one matrix of a further layer.

    They are zeros where it would add to the residual, ones for a norm, else random.
    """
    if name in _SILENT:
        return np.zeros_like(original)
    if original.ndim == 1:
        return np.ones_like(original)
    return ((random.random(original.shape, dtype=np.float32) - np.float32(0.5)) * np.float32(_SPREAD)).astype(original.dtype)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The small trained model made wide and deep: ``python -m benchmarks.widened FOLDER [--width 2048] [--layers 28]``.

A model of 4 M parameters has sums of 256 terms, which most kernels round alike; what a GPU does to the numbers of a real model it does not
show. Here the residual stream is rotated into a wider one (gains of RMSNorm are folded into the weights after it, so that the norm commutes
with a rotation; SliceGPT, Ashkboos et al. 2024, eq. 2) and each neuron of an MLP stands several times, its output shared out. Up to
RMSNorm's epsilon both leave the function as it is in exact arithmetic, with its language, its ends and its tool calls; in bfloat16 the sums
over width and neurons have the terms of a wide model. Attention keeps its heads. Random layers between the trained ones make it as deep as
a real one; their outputs are small, but they do change the function.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import specdec_reference

CHECKPOINT = Path(specdec_reference.__file__).parent / "checkpoints" / "target"
SEED = 20261127
COPIES = 4
"""Of each neuron of a trained MLP."""
RANDOM_SCALE = 0.1
"""Standard deviation of a random layer's output weights, as a share of the trained layers'."""

Weights = dict[str, np.ndarray]


def rotation(rng: np.random.Generator, wide: int, narrow: int) -> np.ndarray:
    """Return a matrix [wide, narrow] with orthonormal columns."""
    return np.linalg.qr(rng.standard_normal((wide, narrow)))[0]


def shares(rng: np.random.Generator, neurons: int) -> np.ndarray:
    """Return by neuron what each of its copies gives to the output [neurons, COPIES]; each row adds up to 1."""
    return rng.dirichlet(np.full(COPIES, 4.0), neurons)


def widen_layer(rng: np.random.Generator, layer: Weights, turn: np.ndarray) -> Weights:
    """Return a trained layer's weights in the wide stream; the gains of its norms become 1."""
    wide, narrow = turn.shape
    shrink = np.sqrt(narrow / wide)  # a rotated vector has the same length over more entries, so the norm makes it longer by 1/shrink
    attention_gain, mlp_gain = layer["input_layernorm.weight"], layer["post_attention_layernorm.weight"]
    result = {name: layer[name] for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight")}
    for name in ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"):
        result[name] = shrink * (layer[name] * attention_gain) @ turn.T
    result["self_attn.o_proj.weight"] = turn @ layer["self_attn.o_proj.weight"]
    for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
        result[name] = np.repeat(shrink * (layer[name] * mlp_gain) @ turn.T, COPIES, axis=0)
    neurons = layer["mlp.down_proj.weight"].shape[1]
    result["mlp.down_proj.weight"] = turn @ np.repeat(layer["mlp.down_proj.weight"], COPIES, axis=1) * shares(rng, neurons).reshape(-1)
    return result | {name: np.ones(wide) for name in ("input_layernorm.weight", "post_attention_layernorm.weight")}


def random_layer(rng: np.random.Generator, trained: Weights) -> Weights:
    """Return a layer of random weights in the shapes of a widened one, with small outputs."""
    result = {}
    for name, weights in trained.items():
        if weights.ndim == 1:
            result[name] = np.ones_like(weights)
            continue
        output = name in {"self_attn.o_proj.weight", "mlp.down_proj.weight"}
        result[name] = rng.standard_normal(weights.shape) * weights.std() * (RANDOM_SCALE if output else 1.0)
    return result


def widen(weights: Weights, *, width: int, layers: int) -> Weights:
    """Return the weights of the wide model; ``weights`` are those of a Qwen3 with tied embeddings, [out, in] each."""
    rng = np.random.default_rng(SEED)
    embedding = weights["model.embed_tokens.weight"]
    turn = rotation(rng, width, embedding.shape[1])
    shrink = np.sqrt(embedding.shape[1] / width)
    result = {
        "model.embed_tokens.weight": embedding @ turn.T,
        "lm_head.weight": shrink * (embedding * weights["model.norm.weight"]) @ turn.T,
        "model.norm.weight": np.ones(width),
    }
    trained = 1 + max(int(name.split(".")[2]) for name in weights if name.startswith("model.layers."))
    places = [round((i + 1) * layers / trained) - 1 for i in range(trained)]
    for i, place in enumerate(places):
        prefix = f"model.layers.{i}."
        wide = widen_layer(rng, {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}, turn)
        first = places[i - 1] + 1 if i else 0
        for at in range(first, place + 1):
            layer = wide if at == place else random_layer(rng, wide)
            result |= {f"model.layers.{at}.{name}": w for name, w in layer.items()}
    return result


def write(folder: Path, *, width: int, layers: int) -> int:
    """Write the wide checkpoint into ``folder`` and return its number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in CHECKPOINT.iterdir():
        if path.name not in {"config.json", "model.safetensors"}:
            shutil.copy(path, folder)
    weights = {name: w.astype(np.float64) for name, w in load_file(CHECKPOINT / "model.safetensors").items()}
    wide = {name: np.ascontiguousarray(w, dtype=np.float16) for name, w in widen(weights, width=width, layers=layers).items()}
    save_file(wide, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((CHECKPOINT / "config.json").read_text("utf-8"))
    config |= {
        "hidden_size": width,
        "intermediate_size": config["intermediate_size"] * COPIES,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    return sum(w.size for w in wide.values())


def main() -> int:
    """Write the checkpoint and print its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=28)
    options = parser.parse_args()
    print(f"{options.folder}: {write(options.folder, width=options.width, layers=options.layers) / 1e6:.0f} M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())

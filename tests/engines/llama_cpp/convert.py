"""The project's checkpoints as GGUF files in float32, written with llama.cpp's ``gguf`` package; neither torch nor transformers is needed.

    python tests/engines/llama_cpp/convert.py GGUF_PY CHECKPOINTS OUT

``GGUF_PY`` is the folder that holds the package, ``OUT`` gets target.gguf, draft.gguf and eagle3.gguf. llama.cpp's own converter stops at
the tokenizer, whose checksum it does not know, and takes an EAGLE-3 head's layers from the top of config.json only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
"""Tensors of Qwen3 and of an EAGLE-3 head, by the names of ``gguf/constants.py``."""


def tensor_name(name: str) -> str:
    """Return llama.cpp's name of a checkpoint's tensor; an EAGLE-3 head's only layer is its first."""
    stem = name.removesuffix(".weight").replace("midlayer.", "model.layers.0.")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[rest]}.weight"
    return f"{_NAMES.get(stem, stem)}.weight"


def add_hyperparameters(writer: Any, described: dict[str, Any]) -> None:
    """Write what config.json says of the layers."""
    writer.add_block_count(described["num_hidden_layers"])
    writer.add_context_length(described["max_position_embeddings"])
    writer.add_embedding_length(described["hidden_size"])
    writer.add_feed_forward_length(described["intermediate_size"])
    writer.add_head_count(described["num_attention_heads"])
    writer.add_head_count_kv(described["num_key_value_heads"])
    writer.add_key_length(described["head_dim"])
    writer.add_value_length(described["head_dim"])
    writer.add_layer_norm_rms_eps(described["rms_norm_eps"])
    rope = described.get("rope_parameters", described)
    writer.add_rope_freq_base(rope["rope_theta"])
    if "eagle_config" in described:
        writer.add_rope_dimension_count(described["head_dim"])
        writer.add_target_layers(described["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        writer.add_target_hidden_size(described["hidden_size"])
        writer.add_norm_before_residual(False)
        writer.add_norm_before_fc(False)


def add_vocabulary(writer: Any, gguf: Any, folder: Path, described: dict[str, Any]) -> None:
    """Write the tokenizer: byte-level BPE behind GPT-2's split of words, and the chat template."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pieces = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_types([gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for _, number in pieces])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(described["eos_token_id"])
    writer.add_pad_token_id(described["pad_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def convert(gguf: Any, folder: Path, tokenizer: Path, out: Path) -> None:
    """Write one checkpoint; ``tokenizer`` is the folder whose vocabulary it has."""
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(out, "eagle3" if "eagle_config" in described else described["model_type"])
    writer.add_name(folder.name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_hyperparameters(writer, described)
    add_vocabulary(writer, gguf, tokenizer, json.loads((tokenizer / "config.json").read_text(encoding="utf-8")))
    for name, values in sorted(load_file(folder / "model.safetensors").items()):
        writer.add_tensor(tensor_name(name), values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(package: str, checkpoints: str, out: str) -> None:
    """Convert the three checkpoints."""
    sys.path.insert(0, package)
    import gguf

    target = Path(checkpoints) / "target"
    Path(out).mkdir(parents=True, exist_ok=True)
    for name in ("target", "draft", "eagle3"):
        convert(gguf, Path(checkpoints) / name, target, Path(out) / f"{name}.gguf")


if __name__ == "__main__":
    main(*sys.argv[1:])

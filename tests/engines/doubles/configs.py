"""Configs of pairs whose servers are doubles, by the double's name: whole runs, the contract and the capability matrix go through them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.engines.doubles import arctic, serving, sglang

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINTS = Path(__file__).parents[3] / "specdec_reference" / "checkpoints"
TARGET, DRAFT = str(CHECKPOINTS / "target"), str(CHECKPOINTS / "draft")


def _sglang(folder: Path) -> dict:
    drafted = {"speculative-draft-model-path": DRAFT, "speculative-num-steps": 3, "speculative-eagle-topk": 1}
    return {
        "engine": {
            "kind": "sglang",
            "model": TARGET,
            "executable": str(sglang.python(folder)),
            "args": {"context-length": 1024, "max-running-requests": 32, "enable-metrics": True, "random-seed": 0},
            "env": {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1"},
        },
        "variants": {"draft-k3": {"args": {"speculative-algorithm": "STANDALONE", **drafted, "speculative-num-draft-tokens": 4}}},
    }


def _tensorrt_llm(folder: Path) -> dict:
    options = {"dtype": "float32", "disable_overlap_scheduler": True, "guided_decoding_backend": "xgrammar"}
    drafted = {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model": DRAFT}
    return {
        "engine": {
            "kind": "tensorrt_llm",
            "model": TARGET,
            "executable": str(serving.trtllm_serve(folder)),
            "args": {"max_batch_size": 32, "max_seq_len": 1024, "extra_llm_api_options": options},
        },
        "variants": {"draft-k3": {"args": {"speculative_config": drafted}}},
    }


def _arctic(folder: Path) -> dict:
    drafted = {"method": "arctic", "model": DRAFT, "num_speculative_tokens": 3}
    args = {"max-num-seqs": 32, "max-model-len": 1024, "async-scheduling": None}
    return {
        "engine": {"kind": "arctic", "model": TARGET, "executable": str(arctic.vllm(folder)), "args": args},
        "variants": {"draft-k3": {"args": {"speculative-config": drafted}}},
    }


def _legacy_vllm(release: str, folder: Path) -> dict:
    program = str(serving.legacy_vllm(folder, release))
    return {
        "engine": {"kind": "vllm", "model": TARGET, "executable": program, "args": {"max-num-seqs": 32, "max-model-len": 1024}},
        "variants": {"draft-k3": {"args": {"speculative-model": DRAFT, "num-speculative-tokens": 3}}},
    }


CONFIGS: dict[str, Callable[[Path], dict]] = {
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
    "arctic": _arctic,
    "vllm-0.7": partial(_legacy_vllm, "0.7.3"),
    "vllm-0.6": partial(_legacy_vllm, "0.6.3"),
}
"""What writes a double's program into a folder and returns its config."""


def write(name: str, folder: Path) -> Path:
    """Write the config of a double, and the programs that it names, into ``folder``."""
    path = folder / f"{name}-double.yaml"
    path.write_text(yaml.safe_dump(CONFIGS[name](folder)))
    return path

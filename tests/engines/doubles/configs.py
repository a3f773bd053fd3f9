"""Configs of pairs whose servers are doubles, by engine: what the contract and the capability matrix run them by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tests.engines.doubles import arctic, sglang
from tests.engines.doubles.serving import trtllm_serve

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKPOINTS = Path(__file__).parents[3] / "pytest_specdec" / "reference" / "checkpoints"
TARGET, DRAFT = str(CHECKPOINTS / "target"), str(CHECKPOINTS / "draft")


def _sglang(folder: Path) -> dict:
    drafted = {"speculative-draft-model-path": DRAFT, "speculative-num-steps": 3, "speculative-eagle-topk": 1}
    return {
        "engine": {
            "kind": "sglang",
            "model": TARGET,
            "executable": str(sglang.python(folder)),
            "args": {"context-length": 512, "enable-metrics": True, "random-seed": 0},
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
            "executable": str(trtllm_serve(folder, OPENBLAS_NUM_THREADS="1")),
            "args": {"max_batch_size": 32, "max_seq_len": 512, "extra_llm_api_options": options},
        },
        "variants": {"draft-k3": {"args": {"speculative_config": drafted}}},
    }


def _arctic(folder: Path) -> dict:
    drafted = {"method": "arctic", "model": DRAFT, "num_speculative_tokens": 3}
    return {
        "engine": {"kind": "arctic", "model": TARGET, "executable": str(arctic.vllm(folder)), "args": {"max-model-len": 512}},
        "variants": {"draft-k3": {"args": {"speculative-config": drafted}}},
    }


CONFIGS: dict[str, Callable[[Path], dict]] = {"sglang": _sglang, "tensorrt_llm": _tensorrt_llm, "arctic": _arctic}
"""A double by its name: what writes its programs into a folder and returns its config."""


def write(name: str, folder: Path) -> Path:
    """Write the config of a double, and the programs that it names, into ``folder``."""
    path = folder / f"{name}-double.yaml"
    path.write_text(yaml.safe_dump(CONFIGS[name](folder)))
    return path

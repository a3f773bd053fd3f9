"""A double of vLLM with Arctic Inference 0.3.0 in it: the plugin's banner and speculative keys, over the reference engine's server.

It shows how we read the plugin, nothing about the plugin itself; files are of the source distribution arctic_inference-0.3.0. Environment
variables of its own:

    ARCTIC_DOUBLE_OTHER_RELEASE     vLLM is not of the release that the plugin is made for
    SPECDEC_FAULT                   a fault of the reference engine, planted where it speculates
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

from specdec_reference import cli, server

# vllm/plugins.py: the plugin does nothing without the variable, and steps aside where vLLM is not of its release.
ENABLED = os.environ.get("ARCTIC_INFERENCE_ENABLED") == "1" and not os.environ.get("ARCTIC_DOUBLE_OTHER_RELEASE")
# vllm/config.py, ArcticSpeculativeConfig, which forbids other keys; the last three are vLLM's own.
KEYS = {
    *("method", "model", "num_speculative_tokens", "enable_suffix_decoding", "disable_by_batch_size", "hard_disable_by_batch_size"),
    *("suffix_cache_max_depth", "suffix_cache_max_requests", "suffix_speculative_tokens", "suffix_max_spec_factor"),
    *("suffix_max_spec_offset", "suffix_min_token_prob", "draft_tensor_parallel_size", "prompt_lookup_max", "prompt_lookup_min"),
}


VERSION = "0.26.0"  # of vLLM, which the plugin is made for; /version says it as well


def vllm(folder: Path) -> Path:
    """Return a program that stands in for the ``vllm`` of an environment with the plugin in it."""
    program, root = folder / "vllm", Path(__file__).parents[3]
    program.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={shlex.quote(str(root))} OPENBLAS_NUM_THREADS=1\n"
        f'exec {shlex.quote(sys.executable)} -m tests.engines.doubles.arctic "$@"\n'
    )
    program.chmod(0o755)
    return program


def setting(text: str) -> dict[str, object]:
    """Return the reference engine's setting that stands for the plugin's: a draft model for the speculator, prompt lookup for suffixes."""
    wanted = json.loads(text)
    if not ENABLED:
        return wanted
    if unknown := sorted(wanted.keys() - KEYS):
        sys.exit(f"Unexpected keyword argument {unknown[0]!r}")
    tokens = {"num_speculative_tokens": wanted.get("num_speculative_tokens", 3)}
    if wanted["method"] == "arctic":
        return {"method": "draft_model", "model": wanted["model"], "draft_sample_method": "greedy", **tokens}
    if wanted["method"] == "suffix":
        return {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, **tokens}
    return wanted


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--version"]:
        print(VERSION)  # noqa: T201 - a command talks to its user
        return 0
    if ENABLED:
        print("Arctic Inference plugin is enabled!", file=sys.stderr, flush=True)  # noqa: T201 - vllm/plugins.py
    server.VERSION = VERSION
    arguments = arguments[1:]  # after `serve`
    if "--speculative-config" in arguments:
        at = arguments.index("--speculative-config") + 1
        arguments[at] = json.dumps(setting(arguments[at]))
        if fault := os.environ.get("SPECDEC_FAULT"):
            arguments += ["--fault", fault]
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

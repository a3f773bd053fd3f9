"""The template of a config for vLLM, with one variant.

A speculator is a draft model or a head, by its name, or a method that needs no second model, such as ngram.
"""

from __future__ import annotations

import re

from pytest_specdec.engines.vllm.rules import RULES
from pytest_specdec.errors import EngineError
from pytest_specdec.files import yaml

_METHODS = (
    (r"eagle[-_]?3", "eagle3"),
    (r"eagle", "eagle"),
    (r"medusa", "medusa"),
    (r"dflash", "dflash"),
    (r"\bmtp\b", "mtp"),
)
"""Methods by a pattern of the speculator's name, the first that fits; any other name is a draft model."""
_ALONE = frozenset({"ngram", "suffix", "mtp"})
"""Methods that need no second model."""
_TOKENS = {"suffix": 8, "mtp": 1}
"""Draft tokens, if they are not three."""
_MORE = {"ngram": ", prompt_lookup_max: 4, prompt_lookup_min: 2", "draft_model": ", draft_sample_method: greedy"}
_CONFIG = """\
# What both servers have in common. The baseline runs with exactly these settings.
engine:
  kind: {kind} # `vllm` on PATH; or add one of `venv: FOLDER`, `executable: FILE`, `image: vllm/vllm-openai:TAG`
  model: {model} # a name of the hub, or a path, absolute or relative to this file
  args: # vLLM's own flags without dashes, values as they are
    max-model-len: 8192
    max-num-seqs: 32
    gpu-memory-utilization: 0.92
    # tensor-parallel-size: 2
    # Stated so that no release changes it in one of the two servers:
    generation-config: vllm # or else the checkpoint's temperature stands in for one that a request leaves out
    max-logprobs: 20 # scores need that many
    seed: 0
    async-scheduling: {overlap} # false with ngram, suffix and medusa, which switch it off in their own server
  env:
    VLLM_USE_V2_MODEL_RUNNER: {runner} # 0 before 0.32, and with suffix and medusa
    VLLM_NO_USAGE_STATS: 1

# A variant adds settings to the engine above. Each one is judged against the baseline; add as many as you like.
variants:
  {name}:
    args:
      speculative-config: {{{setting}}}

limits:
  boot_s: 1800 # the first boot downloads and compiles
  request_s: 300
"""


def text(kind: str, model: str | None, speculator: str | None) -> str:
    """Return a config file's YAML for ``model`` with one variant.

    ``kind`` is the engine's name. ``speculator`` is the name of a draft model, from which the method is guessed, or one of the methods
    ngram, suffix and mtp, which need none; ngram if it is None. Raises EngineError without a model, and for another method, which needs the
    name of a second model.
    """
    if not model:
        what, remedy = f"{kind} has no model of its own to serve", "--model Qwen/Qwen3-32B, or the path of a checkpoint"
        raise EngineError(what, where="--model", found="nothing", expected="the target model", remedy=remedy)
    speculator = _read_speculator(speculator or "ngram")
    method = _guess_method(speculator)
    tokens = _TOKENS.get(method, 3)
    drafter = "" if speculator in _ALONE else f", model: {yaml.scalar(speculator)}"
    # With some methods vLLM switches these two off in the speculating server. The config then has them off for the baseline too.
    is_async = not _switches_off("async-scheduling", method)
    is_second_runner = not _switches_off("VLLM_USE_V2_MODEL_RUNNER", method)
    return _CONFIG.format(
        kind=kind,
        model=yaml.scalar(model),
        overlap=str(is_async).lower(),
        runner=int(is_second_runner),
        name=f"{method.removesuffix('_model')}-k{tokens}",
        setting=f"method: {method}{drafter}, num_speculative_tokens: {tokens}{_MORE.get(method, '')}",
    )


def _read_speculator(speculator: str) -> str:
    """Return the name of a second model, or of a method that needs none.

    Raises EngineError for any other method: vLLM would look for a model of that name.
    """
    methods = {_plain(method): method for method in RULES.drafting.methods}
    method = methods.get(_plain(speculator), "")
    if not method or method in _ALONE:
        return method or speculator
    what, expected = f"{method} drafts with a second model", f"the name of the draft model or head, or {', '.join(sorted(_ALONE))}"
    remedy = f"--speculator ORG/NAME, or ./{speculator} for a folder of that name"
    raise EngineError(what, where="--speculator", found=speculator, expected=expected, remedy=remedy)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _guess_method(speculator: str) -> str:
    """Return the drafting method of a speculator's name."""
    if speculator in _ALONE:
        return speculator
    return next((method for pattern, method in _METHODS if re.search(pattern, speculator, re.IGNORECASE)), "draft_model")


def _switches_off(name: str, method: str) -> bool:
    """Return True if vLLM switches a setting off by itself under ``method``."""
    return any(change.name == name and method in change.methods for change in RULES.silent)

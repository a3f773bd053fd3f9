"""Rules of the lint by engine: which settings speculate, which lose the distribution, and which keep a server from booting.

Read from the engines' sources; facts and versions are in the project's notes on engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.model.workload import JSON

__all__ = ["RULES", "EngineRules", "LossySetting", "SilentChange", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossySetting:
    """A setting under which the engine accepts drafts that the target's distribution would not."""

    path: tuple[str, ...]
    """In the merged arguments, names as :func:`plain` writes them; or an environment variable."""
    is_lossy: Callable[[Any], bool]
    lossless: str
    """What to write instead."""
    env: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentChange:
    """A setting that the engine changes by itself when it speculates, unless both arms state it."""

    name: str
    """The argument or the environment variable."""
    what: str
    methods: frozenset[str] = frozenset()
    """The drafting methods that do it; all of them when empty."""
    also: tuple[str, ...] = ()
    """Other names of it."""
    env: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingRule:
    """What a speculative setting has to say before an engine boots with it."""

    methods: frozenset[str]
    """Every method that the engine is known to take."""
    tokens: tuple[tuple[str, ...], ...]
    """Where the number of draft tokens may stand, in the merged arguments."""
    uncounted: frozenset[str] = frozenset()
    """Methods that need no such number."""
    complete: bool = False
    """Whether there can be no other method; otherwise a newer release may have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What is known of one engine."""

    prefixes: tuple[str, ...]
    """How the names of the speculative settings begin."""
    names: frozenset[str] = frozenset()
    """Speculative settings with other names."""
    statistics: frozenset[str] = frozenset()
    """Settings that only count, and that a baseline refuses."""
    method: tuple[str, ...] = ()
    """Where the drafting method stands."""
    drafting: DraftingRule | None = None
    """None where the engine's own words for it are not known here."""
    lossy: tuple[LossySetting, ...] = ()
    silent: tuple[SilentChange, ...] = ()

    def speculates(self, name: str) -> bool:
        """Whether an argument or a variable belongs to the speculative setting."""
        name = plain(name)
        return name in self.names or name.startswith(self.prefixes)


def plain(name: str) -> str:
    """Return the one spelling of a flag: ``--speculative_config`` and ``speculative-config`` are the same."""
    return name.lstrip("-").replace("_", "-").lower()


def _number(value: JSON) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _below_one(value: JSON) -> bool:
    number = _number(value)
    return number is not None and number < 1


def _given(value: JSON) -> bool:
    return value is not None and value is not False and _number(value) != 0


_V1_ONLY = frozenset({"suffix", "custom_class", "medusa", "mlp_speculator"})

_VLLM_TOKENS = (("speculative-config", "num-speculative-tokens"), ("sc", "num-speculative-tokens"), ("spec-tokens",))
_VLLM_METHODS = frozenset(
    {
        *("ngram", "ngram_gpu", "suffix", "draft_model", "custom_class", "medusa", "mlp_speculator", "eagle", "eagle3"),
        *("extract_hidden_states", "dflash", "dspark", "mtp", "deepseek_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp", "qwen3_next_mtp"),
        *("longcat_flash_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "gemma4_mtp", "qwen3_5_mtp"),
    }
)
"""``SpeculativeMethod`` of vLLM 0.32's config/speculative.py, of its many ``*_mtp`` the longest known."""

_VLLM = EngineRules(
    prefixes=("speculative-", "spec-", "ngram-prompt-lookup", "typical-acceptance"),
    names=frozenset({"sc", "disable-logprobs-during-spec-decoding"}),
    statistics=frozenset({"per-request-spec-decode-metrics"}),
    method=("speculative-config", "method"),
    drafting=DraftingRule(methods=_VLLM_METHODS, tokens=_VLLM_TOKENS, uncounted=frozenset({"suffix"})),
    lossy=(
        LossySetting(
            path=("speculative-config", "rejection-sample-method"),
            is_lossy=lambda v: v in {"synthetic", "fly"},
            lossless="standard or block",
        ),
        LossySetting(
            path=("speculative-config", "acceptance-method"), is_lossy=lambda v: "typical" in str(v), lossless="rejection_sampler"
        ),
        LossySetting(path=("spec-decoding-acceptance-method",), is_lossy=lambda v: "typical" in str(v), lossless="rejection_sampler"),
    ),
    silent=(
        SilentChange(
            name="async-scheduling",
            also=("no-async-scheduling",),
            methods=_V1_ONLY | {"ngram"},
            what="switches asynchronous scheduling off for this method, in the speculative arm only",
        ),
        SilentChange(
            name="VLLM_USE_V2_MODEL_RUNNER",
            env=True,
            methods=_V1_ONLY,
            what="falls back to its first model runner for this method, in the speculative arm only",
        ),
    ),
)
_TRTLLM = EngineRules(
    prefixes=("speculative-",),
    method=("speculative-config", "decoding-type"),
    lossy=(
        LossySetting(path=("speculative-config", "use-relaxed-acceptance-for-thinking"), is_lossy=bool, lossless="false"),
        LossySetting(path=("speculative-config", "posterior-threshold"), is_lossy=_given, lossless="nothing: leave it out"),
        LossySetting(path=("speculative-config", "greedy-sampling"), is_lossy=lambda v: v is False, lossless="true"),
    ),
    silent=(
        SilentChange(name="disable-overlap-scheduler", what="schedules some drafting methods without overlap, in the speculative arm only"),
    ),
)
_SGLANG = EngineRules(
    prefixes=("speculative-",),
    names=frozenset({"sglang-enable-spec-v2"}),
    method=("speculative-algorithm",),
    lossy=(
        LossySetting(path=("speculative-accept-threshold-single",), is_lossy=_below_one, lossless="1.0"),
        LossySetting(path=("speculative-accept-threshold-acc",), is_lossy=_below_one, lossless="1.0"),
        LossySetting(path=("SGLANG_SIMULATE_ACC_LEN",), is_lossy=_given, lossless="nothing: leave it out", env=True),
    ),
    silent=(
        SilentChange(name="max-running-requests", what="allows 48 running requests when it speculates, another number when not"),
        SilentChange(
            name="disable-overlap-schedule",
            methods=frozenset({"NGRAM"}),
            what="schedules without overlap for this method, in the speculative arm only",
        ),
    ),
)
_LLAMACPP = EngineRules(
    prefixes=("spec-", "draft", "ngram-"),
    names=frozenset(
        {
            "md",
            "model-draft",
            "hfd",
            "hf-repo-draft",
            "ngld",
            "gpu-layers-draft",
            "cd",
            "ctx-size-draft",
            "devd",
            "device-draft",
            "ctkd",
            "ctvd",
        }
    ),
    method=("spec-type",),
    lossy=(
        LossySetting(path=("spec-synth-len",), is_lossy=_given, lossless="nothing: leave it out"),
        LossySetting(path=("spec-synth-rates",), is_lossy=_given, lossless="nothing: leave it out"),
    ),
    silent=(SilentChange(name="fit", what="fits context and layers to the memory that is left, which a draft model takes part of"),),
)

RULES: Mapping[str, EngineRules] = {
    "reference": EngineRules(
        prefixes=_VLLM.prefixes,
        names=_VLLM.names,
        statistics=_VLLM.statistics,
        method=_VLLM.method,
        drafting=DraftingRule(methods=frozenset({"draft_model", "ngram"}), tokens=_VLLM_TOKENS, complete=True),
    ),
    "vllm": _VLLM,
    "trtllm": _TRTLLM,
    "sglang": _SGLANG,
    "llamacpp": _LLAMACPP,
}
"""By engine kind; an engine that is not here is not linted."""

"""The rules of the pair lint for TensorRT-LLM, read from ``llmapi/llm_args.py`` of the releases 1.2 and 1.3."""

from __future__ import annotations

from pytest_specdec.config.rules import DraftingRule, EngineRules, LossySetting, SilentChange

SETTING = "speculative-config"
_ONE_MODEL = frozenset({"Eagle", "Eagle3", "MTP", "PARD", "DFlash", "DSpark", "SA"})
"""Methods that draft in the target's own forward pass."""
_TWO_MODELS = frozenset({"DraftTarget", "Draft_Target", "NGram", "UserProvided", "User_Provided"})
_METHODS = _ONE_MODEL | _TWO_MODELS | {"AUTO", "SaveState", "Medusa", "Lookahead"}
_OVERLAP = "extra-llm-api-options.disable-overlap-scheduler"


def _is_false(value: object) -> bool:
    return value is False


def _is_true(value: object) -> bool:
    return value is True


def _is_given(value: object) -> bool:
    return value is not None


RULES = EngineRules(
    prefixes=(SETTING,),
    mappings=frozenset({SETTING, "extra-llm-api-options"}),
    method=(SETTING, "decoding-type"),
    context=("max-seq-len",),
    admitted=("max-batch-size",),
    drafting=DraftingRule(
        methods=_METHODS,
        tokens=((SETTING, "max-draft-len"), (SETTING, "num-nextn-predict-layers")),
        uncounted=frozenset({"AUTO", "SaveState", "Lookahead"}),
    ),
    lossy=(
        LossySetting(path=(SETTING, "use-relaxed-acceptance-for-thinking"), is_lossy=_is_true, lossless="false"),
        LossySetting(path=(SETTING, "posterior-threshold"), is_lossy=_is_given, lossless="nothing: it turns typical acceptance on"),
        LossySetting(path=(SETTING, "greedy-sampling"), is_lossy=_is_false, lossless="true"),
        LossySetting(
            path=(SETTING, "acceptance-length-threshold"),
            is_lossy=_is_given,
            lossless="nothing: below it the engine stops drafting for good, and what is judged then is the baseline",
        ),
    ),
    silent=(
        SilentChange(
            name=_OVERLAP,
            methods=_METHODS,
            what="switches its overlap scheduler off for some methods and needs it off for others, in the speculative arm only",
        ),
        SilentChange(
            name=f"{SETTING}.allow-advanced-sampling",
            methods=_ONE_MODEL,
            what="decodes greedily at every temperature before 1.3 (true takes no effect since)",
        ),
        SilentChange(
            name=f"{SETTING}.is-public-pool",
            methods=frozenset({"NGram"}),
            what="drafts from the texts of earlier requests too, so that acceptance depends on their order",
        ),
    ),
)

"""The rules of the pair lint for SGLang, read from ``srt/arg_groups/speculative_hook.py`` and ``fields/spec.py`` of 0.5.23.

Two changes have no rule, since no argument pins them: speculation switches mixed chunked prefill off, and on a CPU the overlap schedule.
"""

from __future__ import annotations

from pytest_specdec.config.rules import DraftingRule, EngineRules, LossySetting, SilentChange

_METHODS = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO"})
_TOKENS = ("speculative-num-steps", "speculative-num-draft-tokens", "speculative-dflash-block-size", "speculative-dspark-block-size")


def _is_below_one(value: object) -> bool:
    """Return True for a number below 1."""
    try:
        return float(str(value)) < 1.0
    except ValueError:
        return False


RULES = EngineRules(
    prefixes=("speculative-",),
    names=frozenset({"enable-multi-layer-eagle", "uno-lora-path"}),
    method=("speculative-algorithm",),
    context=("context-length",),
    admitted=("max-running-requests",),
    drafting=DraftingRule(methods=_METHODS, tokens=tuple((name,) for name in _TOKENS), uncounted=frozenset({"NGRAM"})),
    lossy=tuple(
        LossySetting(path=(f"speculative-accept-threshold-{name}",), is_lossy=_is_below_one, lossless="1.0") for name in ("single", "acc")
    ),
    silent=(
        SilentChange(
            name="max-running-requests",
            methods=_METHODS - {"UNO"},
            what="takes 48 requests at most where it speculates, and more where it does not",
        ),
    ),
)

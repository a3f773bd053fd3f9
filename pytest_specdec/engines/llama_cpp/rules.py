"""The rules of the pair lint for llama.cpp, and its flags' other names, read from ``common/arg.cpp`` of 0.5.0."""

from __future__ import annotations

from pytest_specdec.config.rules import DraftingRule, EngineRules, LossySetting, SilentChange

METHOD, DRAFT_MODEL = "spec-type", "spec-draft-model"
MODEL_DRAFTERS = {"draft-simple": "", "draft-eagle3": "eagle3", "draft-dflash": "dflash", "draft-dspark": "dflash"}
"""Drafters that need a model file of their own, and its architecture if it is not the target's."""
_METHODS = frozenset({*MODEL_DRAFTERS, "draft-mtp", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache", "none"})

LONG = {
    "a": "alias",
    "b": "batch-size",
    "c": "ctx-size",
    "m": "model",
    "n": "predict",
    "s": "seed",
    "t": "threads",
    "cb": "cont-batching",
    "cram": "cache-ram",
    "ctk": "cache-type-k",
    "ctv": "cache-type-v",
    "dev": "device",
    "fa": "flash-attn",
    "kvu": "kv-unified",
    "mg": "main-gpu",
    "ncmoe": "n-cpu-moe",
    "ngl": "gpu-layers",
    "np": "parallel",
    "ot": "override-tensor",
    "sm": "split-mode",
    "sps": "slot-prompt-similarity",
    "tb": "threads-batch",
    "ts": "tensor-split",
    "ub": "ubatch-size",
    "md": DRAFT_MODEL,
    "model-draft": DRAFT_MODEL,
    "hfd": "spec-draft-hf",
    "hf-repo-draft": "spec-draft-hf",
    "ngld": "spec-draft-ngl",
    "gpu-layers-draft": "spec-draft-ngl",
    "ctkd": "spec-draft-type-k",
    "ctvd": "spec-draft-type-v",
    "devd": "spec-draft-device",
    "td": "spec-draft-threads",
    "tbd": "spec-draft-threads-batch",
    "draft-p-min": "spec-draft-p-min",
    "lcs": "lookup-cache-static",
    "lcd": "lookup-cache-dynamic",
}
"""Flags by other names; a short one has one dash on the command line, where everything of a config gets two."""

REMOVED = {
    **dict.fromkeys(("draft", "draft-n", "draft-max"), "spec-draft-n-max (of a model), or spec-ngram-mod-n-max"),
    **dict.fromkeys(("draft-min", "draft-n-min"), "spec-draft-n-min (of a model), or spec-ngram-mod-n-min"),
    "spec-ngram-size-n": "spec-ngram-simple-size-n, or that of another n-gram drafter",
    "spec-ngram-size-m": "spec-ngram-simple-size-m, or that of another n-gram drafter",
    "spec-ngram-min-hits": "spec-ngram-simple-min-hits, or that of another n-gram drafter",
}
"""Flags with which a server of 0.5.0 exits, and what took their place."""


def _is_given(value: object) -> bool:
    return value is not None


RULES = EngineRules(
    prefixes=("spec-", "draft-", "lookup-cache-"),
    names=frozenset({"draft", *(short for short, long in LONG.items() if long.startswith(("spec-", "lookup-cache-")))}),
    statistics=frozenset(),
    method=(METHOD,),
    drafting=DraftingRule(methods=_METHODS, tokens=(("spec-draft-n-max",),), defaulted=True),
    lossy=tuple(
        LossySetting(path=(name,), is_lossy=_is_given, lossless="nothing: it accepts drafts at random, for benchmarks")
        for name in ("spec-synth-len", "spec-synth-rates")
    ),
    silent=(
        SilentChange(
            name="fit",
            methods=frozenset(MODEL_DRAFTERS) | {"draft-mtp"},
            what="fits context and layers to the memory that the draft model leaves, in the speculative arm only",
        ),
    ),
)

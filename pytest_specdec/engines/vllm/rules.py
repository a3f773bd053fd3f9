"""The rules of the pair lint for vLLM, read from its sources; the methods are those of 0.32 and 0.33."""

from __future__ import annotations

from pytest_specdec.config.rules import DraftingRule, EngineRules, LossySetting, SilentChange

TOKENS = (("speculative-config", "num-speculative-tokens"), ("sc", "num-speculative-tokens"), ("spec-tokens",))
_OLD_TOKENS = ("num-speculative-tokens",)
_METHODS = frozenset(
    {
        *("ngram", "ngram_gpu", "suffix", "draft_model", "custom_class", "medusa", "mlp_speculator", "eagle", "eagle3"),
        *("extract_hidden_states", "dflash", "dspark", "mtp", "deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp"),
        *("glm4_moe_lite_mtp", "glm_ocr_mtp", "glm5_next_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp"),
        *("qwen3_next_mtp", "qwen3_5_mtp", "qwen4_exp_mtp", "longcat_flash_mtp", "bailing_hybrid_mtp", "bailing_hybrid_v3_mtp"),
        *("minimax_m3_mtp", "kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "step5_mtp", "hy_v3_mtp", "hy_v4_mtp", "gemma4_mtp"),
        "inkling_mtp",
    }
)
"""``SpeculativeMethod`` of ``config/speculative.py``."""
_V1_ONLY = frozenset({"suffix", "custom_class", "medusa", "mlp_speculator"})
"""Methods that the second model runner does not take."""


def _is_typical(value: object) -> bool:
    return "typical" in str(value)


RULES = EngineRules(
    prefixes=("speculative-", "spec-", "ngram-prompt-lookup", "typical-acceptance"),
    names=frozenset({"sc", "num-speculative-tokens", "disable-logprobs-during-spec-decoding"}),
    mappings=frozenset({"speculative-config", "sc"}),
    statistics=frozenset({"per-request-spec-decode-metrics"}),
    context=("max-model-len",),
    admitted=("max-num-seqs",),
    method=("speculative-config", "method"),
    drafting=DraftingRule(methods=_METHODS, tokens=(*TOKENS, _OLD_TOKENS), uncounted=frozenset({"suffix"})),
    lossy=(
        LossySetting(
            path=("speculative-config", "rejection-sample-method"),
            is_lossy=lambda value: value in {"synthetic", "fly"},
            lossless="standard or block",
        ),
        LossySetting(path=("speculative-config", "acceptance-method"), is_lossy=_is_typical, lossless="rejection_sampler"),
        LossySetting(path=("spec-decoding-acceptance-method",), is_lossy=_is_typical, lossless="rejection_sampler"),
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

"""The features that a config may require: what a request can ask of a server, by the names that the OpenAI protocol and its engines use."""

from __future__ import annotations

__all__ = ["FEATURES"]

_OPENAI = (
    *("audio", "best_of", "echo", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens"),
    *("max_tokens", "metadata", "modalities", "n", "parallel_tool_calls", "prediction", "presence_penalty", "reasoning_effort"),
    *("response_format", "seed", "service_tier", "stop", "store", "stream", "stream_options", "suffix", "temperature", "tool_choice"),
    *("tools", "top_logprobs", "top_p", "user", "verbosity"),
)
"""Body fields of /v1/completions and /v1/chat/completions (the openai package's own parameters)."""
_ENGINES = (
    *("allowed_token_ids", "bad_words", "chat_template_kwargs", "guided_choice", "guided_grammar", "guided_json", "guided_regex"),
    *("ignore_eos", "include_stop_str_in_output", "length_penalty", "min_p", "min_tokens", "prompt_logprobs", "repetition_penalty"),
    *("return_token_ids", "skip_special_tokens", "spaces_between_special_tokens", "stop_token_ids", "structured_outputs"),
    *("thinking_token_budget", "top_k", "truncate_prompt_tokens", "typical_p", "use_beam_search"),
)
"""What engines add to them (vLLM, SGLang, TensorRT-LLM and llama.cpp share most of it)."""
_FORMATS = ("grammar", "json_object", "json_schema", "structural_tag", "text")
"""Kinds of ``response_format``."""
_FAMILIES = ("speed",)
"""Judgements that have to be made: a speed that no gate decided on fails."""

FEATURES: frozenset[str] = frozenset((*_OPENAI, *_ENGINES, *_FORMATS, *_FAMILIES, "chat_logprobs"))
"""Every name that ``require`` may hold."""

"""The speculative setting of vLLM's command line: ``--speculative-config``, its short flags and the flags before 0.8, read as a draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.arguments import whole_number
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind, DraftSampling

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON

_HEADS = ("eagle", "medusa", "mtp", "mlp_speculator", "dflash", "dspark", "-accelerator")
"""Parts of a method's name; the last one is of the names that IBM gives its ``mlp_speculator`` checkpoints."""
_SHORT = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
_OLD_NAMES = {
    "speculative-model": "model",
    "num-speculative-tokens": "num_speculative_tokens",
    "ngram-prompt-lookup-max": "prompt_lookup_max",
    "ngram-prompt-lookup-min": "prompt_lookup_min",
    "spec-decoding-acceptance-method": "acceptance_method",
    "typical-acceptance-sampler-posterior-threshold": "posterior_threshold",
    "typical-acceptance-sampler-posterior-alpha": "posterior_alpha",
    "disable-logprobs-during-spec-decoding": "disable_logprobs",
    "speculative-disable-by-batch-size": "disable_by_batch_size",
    "speculative-disable-mqa-scorer": "disable_mqa_scorer",
    "speculative-draft-tensor-parallel-size": "draft_tensor_parallel_size",
    "spec-draft-tp": "draft_tensor_parallel_size",
    "speculative-max-model-len": "max_model_len",
    "speculative-model-quantization": "quantization",
}
"""The flags before 0.8 by the keys that took their place in 0.8."""
_SETTING_FLAGS = frozenset({"speculative-config", "sc"})
NEW = _SETTING_FLAGS | frozenset(_SHORT)
"""The speculative flags of 0.8 and later."""
OLD = frozenset(_OLD_NAMES)
"""The speculative flags before 0.8."""
_NGRAM = "ngram"


def speculative_setting(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the speculative setting in ``args``; empty without one.

    It may be in ``--speculative-config``, as one value or with a flag for each key (``--speculative-config.method``), in its short flags,
    or in the flags before 0.8. If several state a key, short flags and those before 0.8 come first, then a flag for the key. Keys are
    those of ``--speculative-config``, with underscores. Raises EngineError for broken JSON.
    """
    by_flag = _values_by_flag(args)
    config_value = by_flag.get("speculative-config", by_flag.get("sc"))
    if isinstance(config_value, str):
        config_value = _parse_json(config_value)
    setting = dict(config_value) if isinstance(config_value, Mapping) else {}
    # `speculative-config.method` as (`speculative-config`, `method`); the key is empty without a dot.
    parts = {name.partition(".")[::2]: value for name, value in by_flag.items()}
    setting.update({key: value for (flag, key), value in parts.items() if flag in _SETTING_FLAGS and key})
    setting.update({key: by_flag[flag] for flag, key in {**_SHORT, **_OLD_NAMES}.items() if flag in by_flag})
    by_key = {name.replace("-", "_"): value for name, value in setting.items()}
    # The model `[ngram]` stands for the method.
    return {**by_key, "method": _NGRAM} if str(by_key.get("model")).strip("[]") == _NGRAM else by_key


def flags_of(args: Mapping[str, JSON], names: frozenset[str]) -> tuple[str, ...]:
    """Return the flags in ``args`` among ``names``, as written.

    A dotted flag counts by its first part: ``speculative-config.model`` as ``speculative-config``.
    """
    return tuple(name for name in args if plain(name).partition(".")[0] in names)


def _values_by_flag(args: Mapping[str, JSON]) -> dict[str, JSON]:
    return {plain(name): value for name, value in args.items()}


def with_resolved_model(args: Mapping[str, JSON], resolve: Callable[[str], str]) -> dict[str, JSON]:
    """Return ``args`` with the draft model's name resolved.

    A setting of 0.8 or later, however it is split over flags, becomes one ``speculative-config``; of flags before 0.8
    only the model's value changes. ``resolve`` makes a path on this machine absolute. Raises EngineError for broken
    JSON.
    """
    if flags_of(args, OLD):
        return {name: _resolve_model(name, value, resolve) for name, value in args.items()}
    setting = speculative_setting(args)
    if not setting:
        return dict(args)
    model = setting.get("model")
    resolved = {"model": resolve(model)} if isinstance(model, str) else {}
    rest = {name: value for name, value in args.items() if plain(name).partition(".")[0] not in NEW}
    return {**rest, "speculative-config": {**setting, **resolved}}


def _resolve_model(name: str, value: JSON, resolve: Callable[[str], str]) -> JSON:
    return resolve(value) if plain(name) == "speculative-model" and isinstance(value, str) else value


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return the draft settings in ``args``; None without any.

    Returns None too for flags before 0.8 without a draft model. Raises EngineError for broken JSON.
    """
    setting = speculative_setting(args)
    if not setting or (flags_of(args, OLD) and not setting.get("model")):
        return None  # before 0.8 the model alone makes a server speculate
    kind = _vllm_draft_kind(str(setting.get("method") or ""), str(setting.get("model") or ""))
    ngram_max = whole_number(setting.get("prompt_lookup_max"))
    # Before 0.8 a running batch of this size drafts nothing (spec_decode_worker.py, _should_disable_all_speculation).
    undrafted_batch = whole_number(setting.get("disable_by_batch_size")) if flags_of(args, OLD) else 0
    return Draft(
        kind=kind,
        tokens=whole_number(setting.get("num_speculative_tokens")),
        sampling=_draft_sampling(args, kind, setting),
        model=str(setting["model"]) if kind is DraftKind.MODEL else None,
        # Without a minimum vLLM takes the maximum for it.
        ngram_min=whole_number(setting.get("prompt_lookup_min")) or ngram_max,
        ngram_max=ngram_max,
        most_requests=max(0, undrafted_batch - 1),  # the largest batch that drafts; 0 for any
    )


def _draft_sampling(args: Mapping[str, JSON], kind: DraftKind, setting: Mapping[str, JSON]) -> DraftSampling:
    """Return the draft sampling, greedy or from the drafter's distribution.

    ``setting`` is the speculative one in ``args``. Before 0.8, with the flags of that time, a draft model always draws from its
    distribution.
    """
    is_drawn = setting.get("draft_sample_method") == "probabilistic" or (kind is DraftKind.MODEL and bool(flags_of(args, OLD)))
    return DraftSampling.PROBABILISTIC if is_drawn else DraftSampling.GREEDY


def _parse_json(text: str) -> JSON:
    """Return the JSON of a setting; raise EngineError if broken."""
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        what = "the speculative setting cannot be read"
        raise EngineError(
            what,
            where="speculative-config",
            found=f"{text[:60]!r}: {error}",
            expected="a mapping, or JSON that holds one",
            remedy="write it as a YAML mapping",
        ) from None


def _vllm_draft_kind(method: str, model: str) -> DraftKind:
    """Return the kind of drafting, by method or model name.

    Without a method it is guessed from the model's name, as vLLM does. Either text is empty if the setting lacks it.
    """
    if _NGRAM in (method or model):
        return DraftKind.NGRAM
    if any(head in (method or model).lower() for head in _HEADS):
        return DraftKind.HEAD
    if method in {"", "draft_model"} and model:
        return DraftKind.MODEL
    return DraftKind.UNKNOWN

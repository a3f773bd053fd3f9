"""The options of the LLM API, which trtllm-serve reads from a YAML file, and the speculative setting among them, read as a draft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import yaml

from pytest_specdec.config.rules import plain
from pytest_specdec.engines.arguments import integer_or_zero
from pytest_specdec.engines.lora_paths import entries
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import Draft, DraftKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON

FLAG = "extra_llm_api_options"
"""The flag that names the file, from 1.0 on; later releases call it ``config`` as well."""
_SETTING = "speculative_config"
_MODEL, _OLD_MODEL = "speculative_model", "speculative_model_dir"
_MODEL_SINCE = (1, 2)
"""The first release that takes the newer name of the draft model's field, beside the older one."""
_STATISTICS_ON: Mapping[str, JSON] = {"enable_iter_perf_stats": True}
_STATISTICS_KEPT: Mapping[str, JSON] = {"iter_stats_max_iterations": 1_000_000}
"""For the counters, in both arms; by default only the last thousand iterations are stored until the next reading."""
_TENSORRT_BACKENDS = frozenset({"tensorrt", "trt"})
"""Backends that count unasked, do not know the switch, and report no paused requests."""
_HEADS = frozenset({"Eagle", "Eagle3", "MTP", "Medusa", "DFlash", "DSpark"})
_LORA, _LORA_FOLDERS = "lora_config", "lora_dir"
_MOST_TOKENS, _SPARE_TOKENS = 1024, 128
_MAX_SEQ_LEN = "max_seq_len"
_MODELS = frozenset({"DraftTarget", "Draft_Target"})


def speculative_setting(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the speculative setting in ``args``; empty without one.

    Raises EngineError for a setting that is not a mapping.
    """
    return _read_mapping(args, _SETTING)


def llm_api_options(args: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return the options of the LLM API, without the speculative setting.

    Raises EngineError for options that are not a mapping, or that hold the setting.
    """
    options = _read_mapping(args, FLAG)
    if _SETTING in options:
        raise EngineError(
            what=f"{_SETTING} stands among the options that both arms have",
            where=f"args.{FLAG}.{_SETTING}",
            expected=f"it beside {FLAG}, under the args of a variant",
            remedy="move it out, so that the arms differ in it and in nothing else",
        )
    return options


def options_text(args: Mapping[str, JSON], release: tuple[int, ...], resolve: Callable[[str], str]) -> str:
    """Return the YAML text of a server's options file.

    It has the config's options of the LLM API, those that turn the counters on, and the speculative setting with the field names of
    ``release``, its numbers (the newer names if it is empty, for unknown). ``resolve`` gives draft model and LoRA adapters their paths.
    """
    # The counters are statistics of iterations. The TensorRT backends write them without the switch, and do not know it.
    switch = {} if args.get("backend") in _TENSORRT_BACKENDS else _STATISTICS_ON
    options = {**_resolve_lora_folders(llm_api_options(args), resolve), **switch, **_STATISTICS_KEPT}
    setting = dict(speculative_setting(args))
    if release and release < _MODEL_SINCE and _MODEL in setting:
        setting[_OLD_MODEL] = setting.pop(_MODEL)
    for name in (_MODEL, _OLD_MODEL):  # a config may have either
        if isinstance(setting.get(name), str):
            setting[name] = resolve(str(setting[name]))
    return yaml.safe_dump({**options, **({_SETTING: setting} if setting else {})}, sort_keys=False)


def lora_folders(args: Mapping[str, JSON]) -> list[str]:
    """Return the folders of LoRA adapters in ``args``, as stated."""
    setting = llm_api_options(args).get(_LORA)
    return [str(folder) for folder in entries(setting.get(_LORA_FOLDERS))] if isinstance(setting, Mapping) else []


def _resolve_lora_folders(options: Mapping[str, JSON], resolve: Callable[[str], str]) -> Mapping[str, JSON]:
    """Return the options with the folders of LoRA adapters resolved; unchanged without any."""
    setting = options.get(_LORA)
    if not isinstance(setting, Mapping) or _LORA_FOLDERS not in setting:
        return options
    folders: JSON = [resolve(str(folder)) for folder in entries(setting[_LORA_FOLDERS])]
    return {**options, _LORA: {**setting, _LORA_FOLDERS: folders}}


def names_options(args: Mapping[str, JSON]) -> bool:
    """Return True if ``args`` hold options of the LLM API."""
    return _spelling_in(args, FLAG) in args


def small_cache(args: Mapping[str, JSON]) -> Mapping[str, JSON] | None:
    """Return arguments for a small cache, to lay over ``args``.

    With them concurrent requests run out of cache, and some are paused. The longest sequence gets at most 1024 tokens, and the cache
    128 more. The scheduler's policy becomes MAX_UTILIZATION, under which requests are paused when the cache is full; by default none
    starts before the cache has room for all of it (CapacitySchedulerPolicy). Names are spelt as in ``args``, so that they take the
    place of those there. Returns None for backends that do not report paused requests.
    """
    if args.get("backend") in _TENSORRT_BACKENDS:
        return None
    options = llm_api_options(args)
    cache, scheduler = ({**_read_mapping(options, name)} for name in ("kv_cache_config", "scheduler_config"))
    # The longest sequence may be stated by a flag or among the options: here the flag alone states it.
    flag = _spelling_in(args, _MAX_SEQ_LEN)
    stated_tokens = integer_or_zero(args.get(flag)) or integer_or_zero(options.get(_MAX_SEQ_LEN))
    longest_tokens = min(stated_tokens or _MOST_TOKENS, _MOST_TOKENS)
    small_options: dict[str, JSON] = {
        **{name: value for name, value in options.items() if name != _MAX_SEQ_LEN},
        "kv_cache_config": {**cache, "max_tokens": longest_tokens + _SPARE_TOKENS},
        "scheduler_config": {**scheduler, "capacity_scheduler_policy": "MAX_UTILIZATION"},
    }
    return {flag: longest_tokens, _spelling_in(args, FLAG): small_options}


def _spelling_in(args: Mapping[str, JSON], name: str) -> str:
    """Return ``name`` as ``args`` spell it; unchanged if they lack it."""
    return next((key for key in args if plain(key) == plain(name)), name)


def command_line(args: Mapping[str, JSON]) -> list[str]:
    """Return ``args`` as flags, without those of the options file.

    True becomes the bare flag. False is left out, since trtllm-serve has no ``--no-`` flags. A list gives the flag once for each item, and
    a mapping is written as JSON.
    """
    argv: list[str] = []
    for name, value in args.items():
        flag = name.lstrip("-").replace("-", "_")
        if flag not in {FLAG, _SETTING} and value is not False:
            values = value if isinstance(value, list | tuple) else [value]
            argv += [f"--{flag}"] if value is True else [word for item in values for word in (f"--{flag}", _write(item))]
    return argv


def _write(value: JSON) -> str:
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


def drafter(args: Mapping[str, JSON]) -> str | None:
    """Return the draft model or head in ``args``; None without one."""
    setting = speculative_setting(args)
    model = setting.get(_MODEL, setting.get(_OLD_MODEL))
    return model if isinstance(model, str) else None


def draft(args: Mapping[str, JSON]) -> Draft | None:
    """Return the draft settings in ``args``; None without any.

    Drafts are the drafter's best tokens whatever the temperature, so that the draft sampling is always greedy, its default.
    Prompt lookup drafts already if the last token alone occurs again, so that ``ngram_min`` is 1.
    """
    setting = speculative_setting(args)
    if not setting:
        return None
    kind = _trtllm_draft_kind(setting)
    ngram_max = integer_or_zero(setting.get("max_matching_ngram_size"))
    return Draft(
        kind=kind,
        tokens=integer_or_zero(setting.get("max_draft_len")) or integer_or_zero(setting.get("num_nextn_predict_layers")),
        model=drafter(args) if kind is DraftKind.MODEL else None,
        ngram_min=1 if kind is DraftKind.NGRAM else 0,
        ngram_max=ngram_max if kind is DraftKind.NGRAM else 0,
        most_requests=integer_or_zero(setting.get("max_concurrency")),
    )


def _trtllm_draft_kind(setting: Mapping[str, JSON]) -> DraftKind:
    """Return the kind of drafting of a setting's method.

    NGRAM is prompt lookup in the request's own tokens, at the oldest match: judges can then work its drafts out. Lookup
    in a pool that requests share, or at the newest match, is of unknown kind.
    """
    method = setting.get("decoding_type")
    if method == "NGram" and setting.get("is_public_pool") is False and setting.get("is_use_oldest", True):
        return DraftKind.NGRAM
    if method in _MODELS:
        return DraftKind.MODEL
    return DraftKind.HEAD if method in _HEADS else DraftKind.UNKNOWN


def _read_mapping(args: Mapping[str, JSON], name: str) -> Mapping[str, JSON]:
    """Return the mapping in an argument; empty without one.

    Raises EngineError for anything but a mapping.
    """
    value = next((value for key, value in args.items() if plain(key) == plain(name)), None)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise EngineError(
            what="the options of the LLM API cannot be read",
            where=f"args.{name}",
            found=f"{value!r:.60}",
            expected="a mapping, from which the file is written",
            remedy="write what the file says into the config",
        )
    return value

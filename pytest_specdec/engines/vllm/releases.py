"""The releases of vLLM: which drafting methods and speculative flags each takes, and how those before 0.8 are started.

A release is its text, ``0.6.3.post1``, empty if unknown; a version is its numbers, ``(0, 6, 3)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.config.validate import nearest
from pytest_specdec.engines import locate
from pytest_specdec.engines.arguments import merge
from pytest_specdec.engines.vllm.speculative_setting import NEW, OLD, flags_of, speculative_setting
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.model.workload import JSON

_ADDED = {
    "draft_model": ((0, 10), (0, 12)),
    "suffix": ((0, 10), (0, 12)),
    "ngram_gpu": ((0, 14), (0, 18)),
    "custom_class": ((0, 18), (0, 22)),
    "dflash": ((0, 22), (0, 26)),
    "dspark": ((0, 22), (0, 26)),
}
"""The last release seen to refuse a method, and the first that surely takes it; those of 0.10 are not listed."""
_REMOVED = {"medusa": (0, 33), "mlp_speculator": (0, 33)}
"""The first release without a method."""
_LISTED = (0, 33)
"""The newest release whose methods are known, all of them."""
_RELEASES_OF_KEYS = frozenset({(0, 32), (0, 33)})
_KEYS = frozenset(
    {
        *(
            "attention_backend",
            "code_revision",
            "disable_eagle_block_drop",
            "disable_lookahead_block_hashes",
            "disable_padded_drafter_batch",
        ),
        *("draft_lm_head_quantization", "draft_load_config", "draft_model_config", "draft_parallel_config", "draft_sample_method"),
        *("draft_tensor_parallel_size", "dspark_draft_topk", "enable_adaptive_verification", "enforce_eager", "fly_entropy_threshold"),
        *("fly_entropy_top_k", "fly_window_size", "index_share_for_mtp_iteration", "kv_cache_dtype", "max_model_len", "method", "model"),
        *("moe_backend", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "parallel_drafting", "prompt_lookup_max"),
        *("prompt_lookup_min", "quantization", "rejection_sample_method", "revision", "suffix_decoding_max_cached_requests"),
        *("suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob"),
        *("synthetic_acceptance_length", "synthetic_acceptance_rates", "target_model_config", "target_parallel_config"),
        *("tensor_parallel_size", "use_heterogeneous_vocab", "use_local_argmax_reduction", "xpress_topc"),
    }
)
"""Fields of ``SpeculativeConfig`` in all ``_RELEASES_OF_KEYS``: the parser takes any mapping, and the server dies of another key."""
_NEW_FLAGS = (0, 8)
"""``--speculative-config`` came with 0.8."""
_OLD_FLAGS_END = (0, 8, 3)
"""The first release that does not take the flags from before 0.8."""
_TOKEN_IDS = (0, 10, 2)
"""The first release whose replies hold token ids on request."""
_STRUCTURED = (0, 11)
"""The first release that takes ``structured_outputs`` in a request."""
NAMED_TOKENS_FLAG = "return-tokens-as-token-ids"
_DISABLE_LOGPROBS = "disable-logprobs-during-spec-decoding"
_TAKES_A_WORD = frozenset({_DISABLE_LOGPROBS, "enable-chunked-prefill", "multi-step-stream-outputs"})
"""Flags before 0.8 that take true and false as a value."""


def is_old(release: str) -> bool:
    """Return True if a release is one before 0.8.

    An example is ``0.6.3.post1``. An unknown release counts as new.
    """
    return () < locate.numbers(release) < _NEW_FLAGS


def names_tokens(release: str) -> bool:
    """Return True if a release gives token ids only as names.

    Those are the releases before 0.10.2. An unknown release counts as new.
    """
    return () < locate.numbers(release) < _TOKEN_IDS


def names_grammars(release: str) -> bool:
    """Return True if a release has a field for each kind of grammar.

    In requests to releases before 0.11, ``guided_json``, ``guided_regex`` and their like constrain an answer. Later ones take a single
    field, ``structured_outputs``, which the older ones ignore. An unknown release counts as new.
    """
    return () < locate.numbers(release) < _STRUCTURED


def check(config: Config, release: str, methods: Collection[str]) -> None:
    """Raise EngineError if ``release`` does not take a variant's settings.

    Its flags, the keys of its speculative setting and its drafting method are checked. An unknown release is not. ``methods`` are
    the drafting methods of all releases up to the newest that is known.
    """
    version = locate.numbers(release)
    for variant in config.variants if version else ():
        args, where = merge(config.engine.args, variant.args), f"variants.{variant.name}.args"
        _check_flags(args, version, release, where)
        _check_keys(speculative_setting(args), version, release, where)
        if method := str(speculative_setting(args).get("method") or ""):
            _check_method_name(method, methods, version, release, f"{where}.speculative-config.method")
            _check_method_release(method, version, release, where)


def _check_flags(args: Mapping[str, JSON], version: tuple[int, ...], release: str, where: str) -> None:
    """Raise EngineError for a flag of other releases.

    ``version`` has the numbers of ``release``, and ``where`` is the place of ``args`` in the config. Releases before 0.8 do not take
    ``--speculative-config``, and those from 0.8.3 on not the flags from before 0.8.
    """
    new_flags, old_flags = flags_of(args, NEW), flags_of(args, OLD)
    if new_flags and version < _NEW_FLAGS:
        what, expected = f"vLLM {release} does not take {new_flags[0]}", "the speculative flags of releases before 0.8"
        remedy = "write speculative-model, num-speculative-tokens and their like, or install 0.8 or newer"
        raise EngineError(what, where=f"{where}.{new_flags[0]}", found=new_flags[0], expected=expected, remedy=remedy)
    if old_flags and version >= _OLD_FLAGS_END:
        what, expected = f"vLLM {release} does not take {old_flags[0]}", "speculative-config, a mapping"
        mapping = ", ".join(f"{key}: {value}" for key, value in speculative_setting(args).items())
        remedy = f"write speculative-config: {{{mapping}}}"
        raise EngineError(what, where=f"{where}.{old_flags[0]}", found=old_flags[0], expected=expected, remedy=remedy)


def _check_keys(setting: Mapping[str, JSON], version: tuple[int, ...], release: str, where: str) -> None:
    """Raise EngineError for an unknown key of the speculative setting.

    Only the releases that have the keys ``_KEYS`` are checked. vLLM's parser takes any key, and the server then dies. ``version`` has the
    numbers of ``release``, and ``where`` is the place of the variant's arguments in the config.
    """
    if version[:2] not in _RELEASES_OF_KEYS:
        return
    unknown = next((key for key in setting if key not in _KEYS), None)
    if unknown:
        suggestion = nearest(unknown, _KEYS)
        what = f"vLLM {release} has no speculative setting {unknown}" + (f"; {suggestion}" if suggestion else "")
        raise EngineError(
            what,
            where=f"{where}.speculative-config.{unknown}",
            found=unknown,
            expected="a field of vLLM's SpeculativeConfig",
            remedy="correct it, or take it out",
        )


def _check_method_name(method: str, methods: Collection[str], version: tuple[int, ...], release: str, where: str) -> None:
    """Raise EngineError for a drafting method of no known release.

    A misspelt name, similar to a known one, is left to ``config/lint.py``, which refuses it with a suggestion. A name with a variable in it
    is not checked, nor is any name for a release newer than ``_LISTED``. ``version`` has the numbers of ``release``.
    """
    if method not in methods and "${" not in method and version[:2] <= _LISTED and not nearest(method, methods):
        what = f"vLLM {release} has no drafting method {method}"
        method_names = ", ".join(sorted(name for name in methods if not name.endswith("_mtp")))
        raise EngineError(what, where=where, found=method, expected=f"one of {method_names}, or a model's own …_mtp", remedy="correct it")


def _check_method_release(method: str, version: tuple[int, ...], release: str, where: str) -> None:
    """Raise EngineError for a method that only other releases have.

    ``version`` has the numbers of ``release``, which is not unknown. A method in neither table counts as one of all releases.
    """
    removed = _REMOVED.get(method)
    last_refusing, first_taking = _ADDED.get(method, ((), ()))  # no version is as low as ()
    if removed and version >= removed:
        needed_release = f"a release before {_dotted_text(removed)}"
    elif version[:2] <= last_refusing and not is_old(release):  # the flags of old releases name no method
        needed_release = f"{_dotted_text(first_taking)} or newer"
    else:
        return
    what, remedy = f"vLLM {release} has no drafting method {method}", "install such a release, or take the variant out"
    raise EngineError(what, where=where, found=method, expected=f"{needed_release}, or another method", remedy=remedy)


def _dotted_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def old_release_args(args: Mapping[str, JSON], *, speculative: bool) -> dict[str, JSON]:
    """Return ``args`` in the form of releases before 0.8.

    Some of their flags take ``true`` or ``false`` as a value. Speculating servers of these releases report placeholders for
    log-probabilities by default: that is switched off, unless the config states the flag.
    """
    flags = {name: str(value).lower() if _takes_word(name, value) else value for name, value in args.items()}
    if speculative and not any(plain(name) == _DISABLE_LOGPROBS for name in flags):
        flags[_DISABLE_LOGPROBS] = "false"
    return flags


def _takes_word(name: str, value: JSON) -> bool:
    return isinstance(value, bool) and plain(name) in _TAKES_A_WORD

"""The adapter of Arctic Inference: vLLM with a plugin that brings drafters of its own and loads into one release of vLLM only.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.engines import vllm
from pytest_specdec.engines.arguments import arm_args, fill, integer_or_zero, whole_number
from pytest_specdec.engines.vllm import Vllm, VllmDialect
from pytest_specdec.errors import EngineError
from pytest_specdec.model.pair import DraftKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Command, Dialect, Footprint, Get, ServerSetup
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

_ENABLED = "ARCTIC_INFERENCE_ENABLED"
_BANNER = "Arctic Inference plugin is enabled!"
_PLUGIN_KEYS = {
    "suffix_decoding_max_tree_depth": "suffix_cache_max_depth",
    "suffix_decoding_max_cached_requests": "suffix_cache_max_requests",
    "suffix_decoding_max_spec_factor": "suffix_max_spec_factor",
    "suffix_decoding_min_token_prob": "suffix_min_token_prob",
}
"""vLLM's own keys of suffix decoding, and the plugin's."""
_METHOD, _SUFFIX = "arctic", "suffix"
_SUFFIX_TOKENS = 16
"""Draft tokens of suffix decoding if the setting names none (the plugin's ``vllm/config.py``)."""
_NO_DRAFTS_FROM = "hard_disable_by_batch_size"
_SETTING = "ulysses_sequence_parallel_size="
"""One of the plugin's settings, as ``/server_info`` prints it."""
_SEQUENCE_RANKS = "ulysses-sequence-parallel-size"
_ASYNC_SCHEDULING = "async-scheduling"
"""A setting that vLLM changes by itself under some methods, and under ``arctic`` too."""


class ArcticDialect(VllmDialect):
    """vLLM's dialect, for a server with the plugin in its log."""

    def wrong_build(self, log: str) -> str:
        """Return a complaint if the log lacks the plugin's banner.

        A plugin for another release of vLLM does not load, without an error. Returns an empty string with the banner.
        """
        return "" if _BANNER in log else f"no line `{_BANNER}`: the plugin is not installed, or is made for another release of vLLM"


class Arctic(Vllm):
    """One engine of the registry: vLLM's adapter, with the plugin on in every arm.

    The plugin is arctic-inference 0.3.0, which is made for vLLM 0.26.0.
    """

    kind = "arctic"
    rules = replace(
        vllm.RULES,
        drafting=replace(vllm.RULES.drafting, methods=vllm.RULES.drafting.methods | {_METHOD}),
        silent=tuple(
            replace(change, methods=change.methods | {_METHOD}) if change.name == _ASYNC_SCHEDULING else change
            for change in vllm.RULES.silent
        ),
    )

    def recognises(self, get: Get) -> bool:
        """Return True if the server is vLLM with the plugin's settings.

        ``get`` returns the text at a path of the server; None without one. ``/server_info`` has the settings, but only under
        ``VLLM_SERVER_DEV_MODE``. Without that variable the server passes for vLLM, and is asked in vLLM's dialect.
        """
        return super().recognises(get) and _SETTING in (get("/server_info") or "")

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:  # noqa: ARG002 - one for every release
        """Return vLLM's dialect plus the check for the banner."""
        return ArcticDialect()

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``--speculative-config``; None without it.

        vLLM's reading of them is corrected by three of the plugin's own keys. ``hard_disable_by_batch_size`` is the number of
        requests from which on none drafts. ``suffix_speculative_tokens`` is the number of draft tokens of method ``suffix``, 16 by
        default. ``enable_suffix_decoding`` adds drafts of suffix decoding to those of method ``arctic``, a head on the target.
        """
        draft, setting = vllm.draft(args), vllm.speculative_setting(args)
        if draft is None:
            return None
        no_drafts_from = integer_or_zero(setting.get(_NO_DRAFTS_FROM))  # the plugin's effective_draft_limit; 0: no limit
        # The largest batch with drafts. 0 is no limit here too; a single request is never over one.
        draft = replace(draft, most_requests=max(0, no_drafts_from - 1))
        if setting.get("method") == _SUFFIX:
            return replace(draft, tokens=integer_or_zero(setting.get("suffix_speculative_tokens")) or draft.tokens or _SUFFIX_TOKENS)
        if setting.get("method") != _METHOD:
            return draft
        is_mixed = setting.get("enable_suffix_decoding") is True
        # No model: it is stated only for a draft model that could be served alone, and a head cannot.
        return replace(draft, kind=DraftKind.UNKNOWN if is_mixed else DraftKind.HEAD, model=None)

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return vLLM's footprint, its devices multiplied by the plugin's sequence ranks.

        Each rank, a process with part of every sequence, takes devices of its own. The arm with most ranks counts.
        """
        footprint = super().footprint(config, accelerated=accelerated)
        ranks = max(max(1, whole_number(args.get(_SEQUENCE_RANKS))) for args in arm_args(config))
        return replace(footprint, devices=footprint.devices * ranks)

    def check(self, config: Config) -> None:
        """Raise EngineError if vLLM or the plugin cannot run this config.

        It refuses an arm with the plugin switched off, and vLLM's own keys of suffix decoding, which the plugin does not
        take. vLLM's own checks follow.
        """
        _require_plugin_on(config)
        for variant in config.variants:
            _refuse_vllm_keys(variant.name, vllm.speculative_setting(fill(config, variant, os.environ)))
        super().check(config)

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return vLLM's command with the plugin on.

        Without the plugin the baseline would run other kernels than the variants.
        """
        return super().command(config, replace(setup, env={_ENABLED: "1", **setup.env}))


def _require_plugin_on(config: Config) -> None:
    """Raise EngineError if an arm switches the plugin off.

    It changes kernels too, so that it has to be on in all arms or the arms would differ in more than speculation.
    """
    env_by_place = {
        "engine": config.engine.env,
        "baseline": config.baseline.env,
        **{f"variants.{variant.name}": variant.env for variant in config.variants},
    }
    for where, env in env_by_place.items():
        if str(env.get(_ENABLED, "1")) != "1":
            raise EngineError(
                what="the plugin is switched off in an arm",
                where=f"{where}.env.{_ENABLED}",
                found=str(env[_ENABLED]),
                expected="1 in every arm, as this engine sets it",
                remedy="remove it; to compare with vLLM alone, gate `kind: vllm` and `kind: arctic` in two configs",
            )


def _refuse_vllm_keys(variant: str, setting: Mapping[str, JSON]) -> None:
    """Raise EngineError for vLLM's own keys of suffix decoding.

    The plugin has keys of its own for the same settings and does not take these.
    """
    for name in setting:
        if name.startswith("suffix_decoding_"):
            suggestion = f"; did you mean {_PLUGIN_KEYS[name]}?" if name in _PLUGIN_KEYS else ""
            raise EngineError(
                what=f"the plugin has no key {name}, which is vLLM's own{suggestion}",
                where=f"variants.{variant}.args.speculative-config",
                found=name,
                expected=f"one of {', '.join(sorted(_PLUGIN_KEYS.values()))}",
                remedy=f"write {_PLUGIN_KEYS.get(name, 'one of these')}, or set engine.kind to vllm",
            )

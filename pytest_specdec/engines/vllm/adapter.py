"""The adapter of vLLM's OpenAI server: ``vllm serve``, on this machine or in a container.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines import checkpoint, docker, locate
from pytest_specdec.engines.arguments import PrecisionFlags, arm_args, device_footprint, fill, flags, process_args
from pytest_specdec.engines.lora_paths import adapter_paths, named_adapters, resolve_paths
from pytest_specdec.engines.plain_dialect import owner
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.engines.vllm import events, releases, template
from pytest_specdec.engines.vllm.dialect import METRICS_FLAG, GuidedDialect, NamedTokensDialect, VllmDialect
from pytest_specdec.engines.vllm.rules import RULES
from pytest_specdec.engines.vllm.speculative_setting import draft, speculative_setting, with_resolved_model
from pytest_specdec.errors import EngineError
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.prompts.adapters import Adapters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

_METRICS_SINCE = (0, 30)
"""The first release with ``per-request-spec-decode-metrics``."""
_API_KEY = "VLLM_API_KEY"
_PROGRAM = "vllm"
_CACHES = {"VLLM_CACHE_ROOT": ".cache/vllm"}
_LORA = "lora-modules"
"""The argument with the adapters of a server."""
_REASONING_PARSER = "reasoning-parser"
_SHARE = "gpu-memory-utilization"
_PARALLEL = (
    ("tensor-parallel-size", "tp"),
    ("pipeline-parallel-size", "pp"),
    ("data-parallel-size", "dp"),
    ("prefill-context-parallel-size", "pcp"),
)
_DEFAULT_SHARE = 0.92
"""vLLM's own ``gpu-memory-utilization``."""
_PRECISION = PrecisionFlags(
    quantising=("quantization", "q", "quantization-config", "quantization-param-path"),
    overrides="hf-overrides",
    cache="kv-cache-dtype",
    caches=frozenset({"auto", "float32"}),
)
_LIMITS, _TEXT_ALONE = "limit-mm-per-prompt", "language-model-only"
"""Arguments by which a model with a vision part takes no images."""
_KV_GIB = "4"
"""vLLM's own ``VLLM_CPU_KVCACHE_SPACE``."""
_PROCESSES_GIB = 3.0
"""Of API server, engine core and worker without weights and KV space, roughly."""
_BLOCK_TOKENS = 16
"""vLLM's own ``block-size`` on most devices; with larger blocks nothing runs out, and the verdict reports it."""
_CPU_BLOCK_TOKENS = 32
"""The least that the attention of a CPU build takes (``v1/attention/backends/cpu_attn.py``), in place of its own 128."""
_PRESSED_TOKENS = 1024
"""The longest sequence of a server with a small cache, which vLLM wants room for."""
_STORING_CONNECTORS = ("Offloading", "LMCache", "Mooncake", "SimpleCPU", "HF3FS")
"""Parts of the names of connectors that keep blocks; others pass them on to another server."""
_MEMORY_FACTOR = 1.5
"""Weights in memory over weights on disk, roughly: a drafter and buffers included."""
_MAPPING_SETTINGS = "draft_sample_method: greedy and use_heterogeneous_vocab: true, with which vLLM maps one vocabulary to the other"
"""``SpeculativeConfig`` of 0.32; other methods and draws refuse it."""
_REMEDY = "pip install 'pytest-specdec[vllm]', or set engine.executable, engine.venv or engine.image"


_BUG_FORM = """\
### Your current environment

{environment}

(paste the output of `python collect_env.py` here)

### 🐛 Describe the bug

{description}

{reproduction}
"""
"""Its .github/ISSUE_TEMPLATE/400-bug-report.yml."""


class Vllm:
    """One engine of the registry (flags: vLLM's ``arg_utils.py`` and ``cli_args.py``)."""

    kind = "vllm"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=25.0, tokens_per_s=300.0, scored_tokens_per_s=1500.0, compile_s=55.0, scaling=0.12)
    """Seen on two cores, nothing compiled: 12 boots of 25 s, 326 tokens/s of a tiny model, twice that of 16 streams together.

    Reported on devices: 430 tokens/s of a 0.5B (vllm#57442); a boot of 59 s with 3 GiB of weights and a compile cache (vllm#20264),
    compilation of 50 s without (vllm#33338).
    """
    rules = RULES
    scored_with = "set max-logprobs to 20 or more (-1 for any number)"
    events_with = events.EVENTS_WITH

    def recognises(self, get: Get) -> bool:
        """Return True if the server is vLLM's.

        ``get`` returns the text at a path of the server; None without one. Either the models' owner is vLLM, or ``/version`` is
        there and the counters have vLLM's names.
        """
        return owner(get) == _PROGRAM or (get("/version") is not None and "vllm:" in (get("/metrics") or ""))

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:
        """Return the dialect of the server, chosen by its release.

        An attached server's release is unknown and counts as current. The draft tokens per step are those of the server's arguments.
        """
        speculation = draft(setup.args)
        draft_tokens = speculation.tokens if speculation else 0
        release = "" if setup.attached else self._release(config)
        if releases.names_tokens(release):  # before 0.10.2: replies have no ids, but tokens' names
            return NamedTokensDialect(draft_tokens)
        if releases.names_grammars(release):  # before 0.11: grammars come in fields of other names
            return GuidedDialect(draft_tokens)
        return VllmDialect(draft_tokens)

    def template(self, model: str | None, speculator: str | None) -> str:
        """Return the config of a pair on one GPU.

        It states the settings that vLLM may change by itself under speculation, so that both arms have the same. ``speculator`` is a
        drafter's name or a method, ngram if it is None. Raises EngineError without ``model``.
        """
        return template.text(self.kind, model, speculator)

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``--speculative-config``; None without any."""
        return draft(args)

    def bug_form(self) -> str:
        """Return the sections of its bug form, to be filled in."""
        return _BUG_FORM

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return ``model`` and the drafter's; either may come from the hub."""
        drafter = speculative_setting(args).get("model")
        is_named = isinstance(drafter, str) and drafter.strip("[]") != "ngram"  # which stands for no model at all
        return (model, str(drafter)) if is_named else (model,)

    def check(self, config: Config) -> None:
        """Raise EngineError if a server of this config cannot start.

        It looks for ``vllm`` (or ``docker`` for an image) and for a model given as a path of this machine. It checks the settings against
        the release, and a draft model's vocabulary against the target's. Docker comes last, so that errors in the config show without it.
        """
        if not config.engine.image:
            self._find_program(config)
        releases.check(config, self._release(config), self.rules.drafting.methods)
        checkpoint.require_model(config)
        self._check_vocabularies(config)
        if config.engine.image:
            docker.check(config)

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:  # noqa: ARG002 - requests name no paths
        """Return the adapters of ``lora-modules``, chosen by ``model``.

        Their paths play no part. There are none without ``enable-lora``.
        """
        return named_adapters(args.get(_LORA), "model") if args.get("enable-lora") else Adapters()

    def small_cache(self, config: Config) -> Mapping[str, JSON] | None:
        """Return arguments for a key-value cache of one short sequence.

        A sequence has at most the config's ``max-model-len`` or 1024 tokens, whichever is less. The cache has blocks for
        one sequence and eight more for verify windows, so that concurrent requests are preempted. The block size is the
        config's, or vLLM's own; on a CPU, where vLLM's own is large, a smaller one is set.
        """
        stated_size, longest = (config.engine.args.get(name) for name in ("block-size", "max-model-len"))
        block_args: dict[str, JSON] = {"block-size": _CPU_BLOCK_TOKENS} if stated_size is None and self._is_cpu_build(config) else {}
        size = block_args.get("block-size", stated_size)
        size = size if isinstance(size, int) and size > 0 else _BLOCK_TOKENS
        longest = min(longest, _PRESSED_TOKENS) if isinstance(longest, int) and longest > 0 else _PRESSED_TOKENS
        # Blocks for the sequence, rounded up, and eight for windows.
        return {**block_args, "max-model-len": longest, "num-gpu-blocks-override": -(-longest // size) + 8}

    def why_not_offloaded(self, config: Config) -> str:
        """Return the reason an arm lacks a second cache tier; empty if none does.

        ``kv-offloading-size`` or a connector that stores blocks gives it one. In a stack, a server of several processes, any of
        them may have it.
        """
        if all(any(map(_has_second_tier, processes)) for processes in process_args(config)):
            return ""
        return "needs an offload of the cache: state kv-offloading-size, or a kv-transfer-config that stores blocks, in the args"

    def why_no_thinking_budget(self, config: Config) -> str:
        """Return the reason no budget can limit an arm's reasoning; empty if one can.

        A budget (``thinking_token_budget`` of a request) counts the tokens of an answer's reasoning. A server knows reasoning from
        the rest only if its arguments name a ``reasoning-parser``.
        """
        parses = all(args.get(_REASONING_PARSER) for args in arm_args(config))
        return "" if parses else f"needs a server that tells reasoning apart: state {_REASONING_PARSER} in the args"

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``vllm serve MODEL …`` or its container.

        The config's key is passed by a variable, so that no command line shows it. A container gets this machine's folders of models
        and adapters, and vLLM's cache, which is kept for the next boot.
        """
        model = config.resolve(setup.model)
        args = self._server_args(config, setup)
        argv = [model, *flags(args)]
        env = {"VLLM_NO_USAGE_STATS": "1", **setup.env, **({_API_KEY: setup.api_key} if setup.api_key else {})}
        if config.engine.image:
            return docker.command(
                config,
                ("serve", *argv),
                entrypoint=_PROGRAM,  # the images' own is another one before 0.11
                env=env,
                folders=[name for name in (*self.models(model, args), *_lora_paths(args)) if Path(name).is_absolute()],
                caches=_CACHES,
                accelerator=not self._is_cpu_build(config),
                secrets=setup.secrets,
            )
        # A key in our own environment is not passed on: requests do not have it.
        return Command(argv=(self._find_program(config), "serve", *argv), env=env, scrubbed=(_API_KEY,), secrets=setup.secrets)

    def events(self, config: Config) -> Mapping[str, Sequence[EventStep]]:
        """Return the events that every arm of the config serves."""
        return events.events(config)

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print the version and the flags of ``vllm serve``."""
        return EngineProgram(version=(argv[0], "--version"), help=tuple(argv[:2]), abbreviates=True)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` of a local checkpoint's config.json; 0 without one."""
        return checkpoint.vocabulary(Path(config.resolve(config.engine.model)))

    def takes_images(self, config: Config) -> bool | None:
        """Return True if the checkpoint takes images and no argument forbids them.

        Returns False if an arm's arguments forbid images, and None if the checkpoint has no config.json on this
        machine.
        """
        limits = (args.get(_LIMITS) for args in arm_args(config))
        none_allowed = any(isinstance(limit, Mapping) and limit.get("image") == 0 for limit in limits)
        if none_allowed or any(args.get(_TEXT_ALONE) for args in arm_args(config)):
            return False
        return checkpoint.takes_images(checkpoint.folder(config, config.engine.model))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the arms' largest ``gpu-memory-utilization`` and number of devices.

        Of a CPU build, and without an accelerator, it is the memory of three processes, KV space, and 1.5 times the weights'
        files, which allows for a drafter and buffers. It is unknown if the weights are not on this machine.
        """
        if accelerated and not self._is_cpu_build(config):
            return device_footprint(config, _SHARE, _DEFAULT_SHARE, _PARALLEL)
        weights = checkpoint.gib(Path(config.resolve(config.engine.model)))
        kv_gib = config.engine.env.get("VLLM_CPU_KVCACHE_SPACE", _KV_GIB)
        is_known = weights is not None and str(kv_gib).isdecimal()
        return Footprint(memory_gib=_PROCESSES_GIB + float(kv_gib) + _MEMORY_FACTOR * (weights or 0.0) if is_known else None)

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - every version serves them
        """Return prompt log-probabilities, which every release serves."""
        return ScoringRoute.PROMPT_LOGPROBS

    def single_precision(self, config: Config) -> bool:
        """Return True if every arm is set to float32, nothing quantised.

        Without ``--dtype``, float32 checkpoints are computed in half precision.
        """
        quantised = checkpoint.is_quantised(checkpoint.folder(config, config.engine.model))
        return not quantised and all(map(_PRECISION.is_single_precision, arm_args(config)))

    def _check_vocabularies(self, config: Config) -> None:
        """Raise EngineError if a draft model's vocabulary differs in size.

        It is compared with the target's, if both checkpoints are on this machine. Variants are skipped if
        ``use_heterogeneous_vocab`` makes vLLM map one vocabulary to the other; the error's remedy names that setting.
        """
        target = checkpoint.folder(config, config.engine.model)
        for variant in config.variants:
            args = fill(config, variant, os.environ)
            draft = self.draft(args)
            is_mapped = speculative_setting(args).get("use_heterogeneous_vocab") is True
            if draft and draft.model and not is_mapped:
                where = f"variants.{variant.name}.args.speculative-config.model"
                checkpoint.require_same_vocabulary(checkpoint.folder(config, draft.model), target, where, bridge=_MAPPING_SETTINGS)

    def _server_args(self, config: Config, setup: ServerSetup) -> dict[str, JSON]:
        """Return the server's arguments in the form of its release.

        Releases without token ids in replies get the flag that names tokens by id. A speculating server gets the flag
        that makes it report verify steps, if its release has that flag and the config does not state it. A draft model and
        LoRA adapters are named by their paths.
        """
        stated = with_resolved_model(setup.args, config.resolve)
        adapters = {name: resolve_paths(value, config.resolve) for name, value in stated.items() if plain(name) == _LORA}
        args: dict[str, JSON] = {"host": HOST, **stated, **adapters, "port": setup.port}
        release = self._release(config)
        if releases.names_tokens(release):
            args.setdefault(releases.NAMED_TOKENS_FLAG, True)
        if releases.is_old(release):
            return releases.old_release_args(args, speculative=setup.speculative)
        version = locate.numbers(release)
        # An unknown release counts as a new one: an unknown flag is refused in clear words, and a config may leave it out.
        has_metrics_flag = not version or version >= _METRICS_SINCE
        if setup.speculative and has_metrics_flag and not any(plain(name) == METRICS_FLAG for name in args):
            args[METRICS_FLAG] = "detailed"
        # A config leaves the flag out by null or false, which are no values of it.
        return {name: value for name, value in args.items() if plain(name) != METRICS_FLAG or value not in (None, False)}

    def _find_program(self, config: Config) -> str:
        return locate.program(config, _PROGRAM, default=shutil.which(_PROGRAM), remedy=_REMEDY)

    def _release(self, config: Config) -> str:
        """Return the release, such as ``0.32.0+cpu``; empty if unknown.

        An image's release is its tag, by :func:`locate.image_release`. Raises EngineError if there is neither an image
        nor a program.
        """
        image = config.engine.image
        return locate.image_release(image) if image else locate.release(self._find_program(config), _PROGRAM)

    def _is_cpu_build(self, config: Config) -> bool:
        """Return True if the release or the image names the CPU."""
        try:
            return "cpu" in (config.engine.image or self._release(config))
        except EngineError:
            return False


def _has_second_tier(args: Mapping[str, JSON]) -> bool:
    """Return True if a server's arguments make it keep blocks beside its cache."""
    connector = args.get("kv-transfer-config")
    name = str(connector.get("kv_connector", "")) if isinstance(connector, Mapping) else str(connector or "")
    return bool(args.get("kv-offloading-size")) or any(word in name for word in _STORING_CONNECTORS)


def _lora_paths(args: Mapping[str, JSON]) -> list[str]:
    return [path for name, value in args.items() if plain(name) == _LORA for path in adapter_paths(value)]

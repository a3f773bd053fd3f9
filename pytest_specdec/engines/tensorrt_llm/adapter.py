"""The adapter of TensorRT-LLM's OpenAI server: ``trtllm-serve``, on this machine or in a container of NVIDIA's registry.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
The options of the LLM API are settings that the server reads from a YAML file; this package writes it from the config.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.engines import checkpoint, docker, locate
from pytest_specdec.engines.arguments import fill
from pytest_specdec.engines.plain_dialect import owner
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.engines.tensorrt_llm import options
from pytest_specdec.engines.tensorrt_llm.dialect import TensorRtLlmDialect
from pytest_specdec.engines.tensorrt_llm.rules import RULES
from pytest_specdec.errors import EngineError
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.prompts.adapters import Adapter, Adapters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

_PROGRAM, _PACKAGE = "trtllm-serve", "tensorrt_llm"
_LISTS_SINCE = (1, 3)
"""The first release whose completions report log-probabilities (TensorRT-LLM#10809, merged in January 2026)."""
_SHARE = "kv-cache-free-gpu-memory-fraction"
_DEFAULT_SHARE = 0.9
_PARALLEL, _PIPELINE = ("tp-size", "tensor-parallel-size"), ("pp-size", "pipeline-parallel-size")
_REMEDY = "pip install tensorrt-llm, or set engine.executable, engine.venv or engine.image"


_BUG_FORM = """\
### System Info

{environment}

### Who can help?

### Information

- [ ] The official example scripts
- [x] My own modified scripts

### Tasks

- [ ] An officially supported task in the `examples` folder (such as GLUE/SQuAD, ...)
- [x] My own task or dataset (give details below)

### Reproduction

{reproduction}

### Expected behavior

The same answer as without speculative decoding.

### actual behavior

{description}

### additional notes

none
"""
"""Its .github/ISSUE_TEMPLATE/06-bug-report.yml."""


class TensorRtLlm:
    """One engine of the registry (flags: ``commands/serve.py`` of TensorRT-LLM; options: its ``llmapi/llm_args.py``)."""

    kind = "tensorrt_llm"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=300.0, tokens_per_s=60.0, scored_tokens_per_s=100.0)
    rules = RULES
    scored_with = (
        "have the model's tokenizer.json on this machine, and the packages tokenizers and jinja2; gpt-oss before 1.3 needs "
        "DISABLE_HARMONY_ADAPTER: 1 under env; or name a `scorer:`"
    )

    def recognises(self, get: Get) -> bool:
        """Return True if the server names TensorRT-LLM as its models' owner.

        The owner's name is that in ``ModelCard`` of ``serve/openai_protocol.py``. The counters are not read, since
        every reading empties them.
        """
        return owner(get) == self.kind

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:
        """Return the dialect of the server's release.

        The release decides if completions report log-probabilities; an unknown one counts as new. The server's variables may
        name another cache of the hub, in which the dialect looks for the model's tokenizer.
        """
        release = self._release(config)
        environ = {**os.environ, **setup.env}
        return TensorRtLlmDialect(config.resolve(setup.model), environ, completions_list_tokens=not release or release >= _LISTS_SINCE)

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``speculative_config``; None without any."""
        return options.draft(args)

    def bug_form(self) -> str:
        """Return the sections of its bug form, to be filled in."""
        return _BUG_FORM

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return ``model`` and the drafter; either may come from the hub."""
        drafter = options.drafter(args)
        return (model, drafter) if drafter else (model,)

    def check(self, config: Config) -> None:
        """Raise EngineError if a server of this config cannot start.

        Without an image it looks for ``trtllm-serve`` and for a model given as a path. In every arm it refuses options that
        cannot be read, an options file of the arm's own, and settings that keep it from drafting. Docker comes last, so that
        errors in the config show without it.
        """
        if not config.engine.image:
            self._find_program(config)
            checkpoint.require_model(config)
        for where, args in _arms(config):
            options.llm_api_options(args)  # raises if they cannot be read
            _refuse_options_file(where, args)
            if options.speculative_setting(args):
                self._check_drafting(config, where, args)
        if config.engine.image:
            docker.check(config)

    def small_cache(self, config: Config) -> Mapping[str, JSON] | None:
        """Return arguments for a small cache and for pausing requests.

        With them concurrent requests are preempted, which TensorRT-LLM calls paused. The cache has room for one sequence of at most
        1024 tokens, and the scheduler starts requests all the same. Returns None for backends that count no paused requests, and if
        an arm has ``extra_llm_api_options`` of its own, which these arguments would replace.
        """
        arm_layers = (config.baseline.args, *(variant.args for variant in config.variants))
        if any(map(options.names_options, arm_layers)):
            return None
        return options.small_cache(config.engine.args)

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:
        """Return the adapters of ``lora_config.lora_dir`` among the options.

        An adapter is called after its folder. A request chooses it by the folder's path, as the server has it.
        """
        folders = map(config.resolve, options.lora_folders(args))
        return Adapters(named=tuple(_adapter(number, folder) for number, folder in enumerate(folders)))

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``trtllm-serve MODEL …`` or its container.

        The command comes with the file of options that it reads. All servers' files are in one folder, and so are named by a
        digest of their text. Raises EngineError if that text holds a secret.
        """
        model = config.resolve(setup.model)
        text = options.options_text(setup.args, self._release(config), config.resolve)
        file = setup.folder.absolute() / f"llm-api-options-{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
        _refuse_secrets(setup, text)
        flags = options.command_line({"host": HOST, **setup.args, "port": setup.port})
        argv = (model, *flags, f"--{options.FLAG}", str(file))
        if not config.engine.image:
            return Command(argv=(self._find_program(config), *argv), env=setup.env, files={str(file): text}, secrets=setup.secrets)
        return self._container_command(config, setup, argv, {str(file): text})

    def _container_command(self, config: Config, setup: ServerSetup, argv: Sequence[str], files: Mapping[str, str]) -> Command:
        """Return the container's command, with the server's folders mounted.

        The folders are those of models, adapters and files. ``argv`` are the server's words, the model first, and ``files`` the
        texts to be written, by path.
        """
        names = (*self.models(argv[0], setup.args), *map(config.resolve, options.lora_folders(setup.args)))
        models = [name for name in names if Path(name).is_absolute()]
        folders = [*models, *{str(Path(file).parent) for file in files}]
        command = docker.command(config, (_PROGRAM, *argv), env=setup.env, secrets=setup.secrets, folders=folders)
        return replace(command, files=files)

    def program(self, argv: Sequence[str]) -> EngineProgram | None:
        """Return the command lines that print the package's version and the flags of ``trtllm-serve``.

        ``argv`` is the command of a server. Its parser takes no abbreviated flags. Returns None without an interpreter in the
        folder of its program.
        """
        python = Path(argv[0]).with_name("python")
        if not python.exists():
            return None
        version = f"from importlib.metadata import version; print(version({_PACKAGE!r}))"
        return EngineProgram(version=(str(python), "-c", version), help=(argv[0], "serve"), abbreviates=False)

    def vocabulary(self, config: Config) -> int:
        """Return ``vocab_size`` in the config.json of the target's checkpoint.

        Returns 0 if the checkpoint is not on this machine.
        """
        return checkpoint.vocabulary(checkpoint.folder(config, config.engine.model))

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:  # noqa: ARG002 - it runs on nothing else
        """Return the largest share of free device memory among the arms.

        The share is of the memory that the weights leave free: a second server on the device would find it taken. An arm
        that states no share takes the engine's default of 0.9; the share counts as stated if every arm states one. The number
        of devices is the largest of all arms too. ``options`` says in messages how to change the share or that number.
        """
        arms = [{plain(name): value for name, value in args.items()} for _, args in _arms(config)]
        shares = [_stated_share(args) for args in arms]
        stated_shares = [share for share in shares if share is not None]
        device_counts = [_parallel_size(args, _PARALLEL) * _parallel_size(args, _PIPELINE) for args in arms]
        return Footprint(
            device_share=max(_DEFAULT_SHARE if share is None else share for share in shares),
            share_stated=len(stated_shares) == len(arms),
            devices=max(device_counts),
            options=f"{_SHARE.replace('-', '_')} (a share of what is free once weights are loaded: servers side by side race for it; "
            "kv_cache_config: {max_tokens: N} does not) or tp_size",
        )

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - no release serves log-probabilities of a prompt
        """Return continuations, the only way to score here."""
        return ScoringRoute.CONTINUATIONS

    def single_precision(self, config: Config) -> bool:
        """Return True if every arm is set to float32, nothing quantised."""
        quantised = checkpoint.is_quantised(checkpoint.folder(config, config.engine.model))
        return not quantised and all(_is_single_precision(args) for _, args in _arms(config))

    def _check_drafting(self, config: Config, where: str, args: Mapping[str, JSON]) -> None:
        """Raise EngineError if an arm's arguments keep it from drafting.

        TensorRT-LLM does not speculate with pipeline parallelism, nor with a draft model of another vocabulary size.
        ``where`` is the arm's place in the config.
        """
        args_by_name = {plain(name): value for name, value in args.items()}
        if _parallel_size(args_by_name, _PIPELINE) > 1:
            raise EngineError(
                what="TensorRT-LLM does not speculate with pipeline parallelism",
                where=f"{where}.args.pp_size",
                found=f"pp_size {_parallel_size(args_by_name, _PIPELINE)} beside a speculative setting",
                expected="pp_size 1",
                remedy="use tp_size",
            )
        draft = self.draft(args)
        if draft and draft.model:
            target = Path(config.resolve(config.engine.model))
            checkpoint.require_same_vocabulary(
                Path(config.resolve(draft.model)), target, f"{where}.args.speculative_config.speculative_model"
            )

    def _find_program(self, config: Config) -> str:
        return locate.program(config, _PROGRAM, default=shutil.which(_PROGRAM), remedy=_REMEDY)

    def _release(self, config: Config) -> tuple[int, ...]:
        """Return the release's numbers; empty if unknown."""
        image = config.engine.image
        try:
            return locate.numbers(locate.image_release(image) if image else locate.release(self._find_program(config), _PACKAGE))
        except EngineError:
            return ()


def _arms(config: Config) -> Iterator[tuple[str, dict[str, JSON]]]:
    """Yield every arm's place in the config and its arguments.

    Arguments are the engine's with the arm's own laid over. A ``${VAR}`` is filled in if it is set.
    """
    yield "baseline", fill(config, config.baseline, os.environ)
    for variant in config.variants:
        yield f"variants.{variant.name}", fill(config, variant, os.environ)


def _refuse_options_file(where: str, args: Mapping[str, JSON]) -> None:
    """Raise EngineError if an arm names an options file itself.

    ``where`` is the arm's place in the config. A server reads only one such file, and this package writes it from the mapping
    ``extra_llm_api_options``. The flag of that name is called ``config`` too, and would name another file. Under the older
    name a file is refused already, as it is no mapping.
    """
    name = next((name for name in args if plain(name) == "config"), None)
    if name is not None:
        raise EngineError(
            what="the file of options is written by us",
            where=f"{where}.args.{name}",
            found=f"{args[name]!r:.60}",
            expected=f"{options.FLAG}: {{…}}, a mapping with what the file says",
            remedy="move the file's lines into the config",
        )


def _refuse_secrets(setup: ServerSetup, text: str) -> None:
    """Raise EngineError for a secret in the options.

    ``text`` is that of the file of options, which would keep it in the run directory.
    """
    if setup.secrets.mask(text) != text:
        raise EngineError(
            what="the options of the LLM API hold a secret, and are written into the run directory",
            where=f"args.{options.FLAG}",
            expected="options without one",
            remedy="pass it as a variable under `env:`",
        )


def _stated_share(args: Mapping[str, JSON]) -> float | None:
    """Return the stated share of free device memory; None without one.

    A flag comes first, then ``kv_cache_config`` in the options of the LLM API. A value that is no share, above 0 and at most 1,
    counts as none.
    """
    cache = options.llm_api_options(args).get("kv_cache_config")
    nested = cache.get("free_gpu_memory_fraction") if isinstance(cache, Mapping) else None
    stated = args.get(_SHARE, args.get("free-gpu-memory-fraction", nested))
    return float(stated) if isinstance(stated, (int, float)) and 0 < stated <= 1 else None


def _parallel_size(args: Mapping[str, JSON], names: Sequence[str]) -> int:
    """Return the number of ranks in the first argument of ``names``; 1 without any."""
    return next((size for name in names if isinstance(size := args.get(name), int)), 1)


def _is_single_precision(args: Mapping[str, JSON]) -> bool:
    """Return True if an arm's arguments keep everything in float32.

    The options must state ``dtype`` float32, and nothing that quantises. The type of the key-value cache, in a flag or in the
    options, has to be float32 too or left out.
    """
    llm_options = options.llm_api_options(args)
    cache = llm_options.get("kv_cache_config")
    flag = next((value for name, value in args.items() if plain(name) == "kv-cache-dtype"), None)
    caches = {flag, cache.get("dtype") if isinstance(cache, Mapping) else None}
    return (
        llm_options.get("dtype") == "float32" and not any("quant" in name for name in llm_options) and caches <= {None, "auto", "float32"}
    )


def _adapter(number: int, folder: str) -> Adapter:
    """Return the adapter of a folder, with the field by which requests choose it."""
    name = Path(folder).name
    return Adapter(name=name, fields={"lora_request": {"lora_name": name, "lora_int_id": number, "lora_path": folder}})

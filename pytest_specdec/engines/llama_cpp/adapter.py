"""The adapter of ``llama-server``, on this machine or in a container.

An arm is one of the servers compared: the baseline, which does not speculate, or a variant, which does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines import docker, locate
from pytest_specdec.engines.arguments import arm_args, fill, flags
from pytest_specdec.engines.llama_cpp import drafters, events, gguf
from pytest_specdec.engines.llama_cpp.dialect import LlamaCppDialect
from pytest_specdec.engines.llama_cpp.rules import DRAFT_MODEL, MODEL_DRAFTERS, RULES
from pytest_specdec.engines.lora_paths import entries
from pytest_specdec.engines.plain_dialect import owner
from pytest_specdec.engines.protocol import HOST, PROTOCOL_VERSION, Command, Dialect, EngineProgram, Footprint, RoughRates
from pytest_specdec.errors import EngineError
from pytest_specdec.model.transcript import ScoringRoute
from pytest_specdec.prompts.adapters import Adapter, Adapters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Get, ServerSetup
    from pytest_specdec.model.event import EventStep
    from pytest_specdec.model.pair import Draft
    from pytest_specdec.model.workload import JSON

_API_KEY = "LLAMA_API_KEY"
_SPECULATIVE = ("LLAMA_ARG_SPEC", "LLAMA_ARG_DRAFT")
_PROCESS_GIB = 0.25
"""GiB of a server without its weights, with a short context."""
_FILES = (DRAFT_MODEL, "lookup-cache-static", "lookup-cache-dynamic", "chat-template-file", "mmproj")
"""Arguments that name files."""
_REMEDY = "build llama-server, or set engine.executable or engine.image"


_BUG_FORM = """\
### Name and Version

{environment}

### Which llama.cpp modules do you know to be affected?

llama-server

### Problem description & steps to reproduce

{description}

{reproduction}
"""
"""Its .github/ISSUE_TEMPLATE/019-bug-misc.yml."""

_LORA: Mapping[str, float | None] = {"lora": 1.0, "lora-scaled": None}
"""Arguments with the files of adapters, and the scale of these; None where each file comes with its own."""


class LlamaCpp:
    """One engine of the registry (flags: llama.cpp's ``common/arg.cpp``)."""

    kind = "llama_cpp"
    protocol_version = PROTOCOL_VERSION
    pace = RoughRates(boot_s=3.0, tokens_per_s=100.0, scored_tokens_per_s=4000.0)
    rules = RULES
    scored_with = "serve one text model, without --embedding, --reranking or --models-dir"
    events_with = events.EVENTS_WITH

    def recognises(self, get: Get) -> bool:
        """Return True if the server is llama.cpp's.

        ``get`` returns the text at a path of the server; None without one. Either the models' owner is llama.cpp, or
        ``/props`` names a build (``server-context.cpp``).
        """
        return owner(get) == "llamacpp" or bool(LlamaCppDialect().version(get("/props") or ""))

    def dialect(self, config: Config, setup: ServerSetup) -> Dialect:  # noqa: ARG002 - one for every release
        """Return the dialect of the OpenAI routes.

        Slots, the sequences that a server holds at once, are as many as ``parallel`` states. Without that argument their number
        is unknown, and given as 0.
        """
        slots = drafters.by_long_names(setup.args).get("parallel")
        return LlamaCppDialect(int(slots) if isinstance(slots, int | str) and str(slots).isdecimal() else 0)

    def draft(self, args: Mapping[str, JSON]) -> Draft | None:
        """Return the draft settings of ``--spec-type`` and related flags."""
        return drafters.draft(args)

    def bug_form(self) -> str:
        """Return the sections of its bug form, to be filled in."""
        return _BUG_FORM

    def models(self, model: str, args: Mapping[str, JSON]) -> tuple[str, ...]:
        """Return the names of target and draft model on the hub.

        Model files (``.gguf``) are left out. A name comes without the quantisation after its colon.
        """
        names = [name for name in (model, drafters.by_long_names(args).get("spec-draft-hf")) if isinstance(name, str)]
        return tuple(name.partition(":")[0] for name in names if not name.endswith(".gguf"))

    def check(self, config: Config) -> None:
        """Raise EngineError if a server cannot start or never drafts.

        It refuses variables that make the baseline speculate, removed flags, and settings with which a server would boot
        without drafting anything. Then it looks for the program (or ``docker`` for an image) and the model files, and
        checks each draft model's architecture or vocabulary. Models of the hub, which the server downloads, are not checked.
        """
        _refuse_speculative_variables(config)
        arms = [(f"variants.{variant.name}.args", fill(config, variant, os.environ)) for variant in config.variants]
        for where, args in arms:
            drafters.check_drafters(args, where)
        if config.engine.image:
            docker.check(config)
        else:
            _find_program(config)
        target = _find_model_file(config, config.engine.model, "engine.model")
        for where, args in arms:
            name = drafters.by_long_names(args).get(DRAFT_MODEL)
            path = _find_model_file(config, name, f"{where}.{DRAFT_MODEL}") if isinstance(name, str) else None
            for drafter in drafters.drafters(args):
                if path and target and drafter in MODEL_DRAFTERS:
                    drafters.check_draft_model(drafter, path, target, f"{where}.{DRAFT_MODEL}")

    def adapters(self, config: Config, args: Mapping[str, JSON]) -> Adapters:  # noqa: ARG002 - requests name no paths
        """Return the adapters of ``lora`` and ``lora-scaled``, each with its scale.

        Requests choose by number, in the order of the files; one that chooses nothing gets them all, so that a request for none of them
        sets every scale to 0. An adapter's name is its number and its file. Raises EngineError for a file without the scale that it needs.
        """
        files = [file for name, value in args.items() if name in _LORA for file in _lora_files(name, value)]
        named = tuple(
            Adapter(name=f"{number}:{Path(path).stem}", fields=_lora_field({number: scale}, len(files)))
            for number, (path, scale) in enumerate(files)
        )
        return Adapters(named=named, without=_lora_field({}, len(files)) if files else {})

    def command(self, config: Config, setup: ServerSetup) -> Command:
        """Return ``llama-server --model FILE …`` or its container.

        A model whose name does not end in ``.gguf`` is loaded from the hub by the server. Paths become absolute. A container
        gets the folders of all of them, and no GPU if no layer may go to one. The API key is passed by a variable.
        """
        source = "model" if setup.model.endswith(".gguf") else "hf-repo"
        args_by_name = drafters.by_long_names(setup.args)
        resolved_args = {name: config.resolve(str(value)) if name in _FILES else value for name, value in args_by_name.items()}
        resolved_args |= {name: _resolve_lora(name, args_by_name[name], config) for name in _LORA if name in args_by_name}
        # The config may replace all but the port, by which the server is reached.
        args: dict[str, JSON] = {source: config.resolve(setup.model), "host": HOST, "metrics": True, **resolved_args, "port": setup.port}
        env = {**setup.env, **({_API_KEY: setup.api_key} if setup.api_key else {})}
        if config.engine.image:
            # An argument may name several files, with commas between.
            paths = [path for value in args.values() if isinstance(value, str) for path in value.split(",") if path.startswith("/")]
            folders = sorted({str(Path(path).parent) for path in paths})
            return docker.command(
                config,
                flags(args),
                env=env,
                folders=folders,
                accelerator=_is_accelerated(args),
                secrets=setup.secrets,
            )
        # Variables of our own environment that would set up the server too are taken out before `env` is added.
        scrubbed = ("LLAMA_ARG_", _API_KEY)
        return Command(argv=(_find_program(config), *flags(args)), env=env, scrubbed=scrubbed, secrets=setup.secrets)

    def events(self, config: Config) -> Mapping[str, Sequence[EventStep]]:
        """Return the events that every arm of the config serves."""
        return events.events(config)

    def takes_images(self, config: Config) -> bool | None:
        """Return True if every arm loads a projector, the image encoder of ``--mmproj``.

        Returns None, unknown, for a model of the hub, which may bring a projector of its own. Returns False for a model file,
        or if an arm has ``no-mmproj``.
        """
        arms = list(_arm_args(config))
        if all(args.get("mmproj") or args.get("mmproj-url") for args in arms):
            return True
        may_bring_projector = not config.engine.model.endswith(".gguf") and not any(args.get("no-mmproj") for args in arms)
        return None if may_bring_projector else False

    def program(self, argv: Sequence[str]) -> EngineProgram:
        """Return the command lines that print the version and the flags of ``llama-server``.

        The caller adds the flag for help. The parser takes no abbreviated flags. The version goes to the error stream, above a line
        about the compiler.
        """
        return EngineProgram(version=(argv[0], "--version"), help=(argv[0],), abbreviates=False, version_prefix="version:")

    def vocabulary(self, config: Config) -> int:
        """Return the number of tokens in the model file; 0 without that file."""
        path = Path(config.resolve(config.engine.model))
        return len(gguf.header(path).tokens) if path.is_file() else 0

    def footprint(self, config: Config, *, accelerated: bool) -> Footprint:
        """Return the machine's memory that a server takes, or all memory of its accelerators.

        The machine's memory is that of the process, the target's file and the draft models' files of all arms, so that it is enough for
        each; it is unknown (None) if a file is missing.
        """
        if accelerated and any(_is_accelerated(args) for args in _arm_args(config)):
            # A server fills the memory that it finds, and spreads over all accelerators that it sees, not the first ones alone.
            return Footprint(device_share=1.0, takes_first=False, options="gpu-layers or device")
        names = {config.engine.model, *(str(name) for args in _arm_args(config) if (name := args.get(DRAFT_MODEL)))}
        sizes = [gguf.gib(Path(config.resolve(name))) for name in names]
        known_sizes = [size for size in sizes if size is not None]
        return Footprint(memory_gib=_PROCESS_GIB + sum(known_sizes) if len(known_sizes) == len(sizes) else None)

    def route(self, config: Config) -> ScoringRoute:  # noqa: ARG002 - no release serves log-probabilities of a prompt
        """Return continuations, the only way to score here."""
        return ScoringRoute.CONTINUATIONS

    def single_precision(self, config: Config) -> bool:
        """Return True if the model file and all caches are float32.

        Every arm has to keep its keys and values in float32. Returns False for a model that is no file on this machine.
        """
        path = Path(config.resolve(config.engine.model))
        caches = (args.get(name) for args in _arm_args(config) for name in ("cache-type-k", "cache-type-v"))
        return path.is_file() and gguf.header(path).single_precision and all(cache == "f32" for cache in caches)


def _find_program(config: Config) -> str:
    return locate.program(config, "llama-server", default=shutil.which("llama-server"), remedy=_REMEDY)


def _refuse_speculative_variables(config: Config) -> None:
    """Raise EngineError if a variable makes the baseline speculate.

    Every flag of ``llama-server`` can also be set by a variable. The pair lint, which keeps speculative arguments out of the
    baseline, does not read those.
    """
    for where, env in (("engine.env", config.engine.env), ("baseline.env", config.baseline.env)):
        for name in env:
            if name.startswith(_SPECULATIVE):
                what, expected = "a speculative setting in the baseline's environment", "none"
                raise EngineError(
                    what, where=f"{where}.{name}", found=name, expected=expected, remedy="write it as an argument of a variant"
                )


def _find_model_file(config: Config, model: str, where: str) -> Path | None:
    """Return the file of ``model``; None for a hub name.

    A name without ``.gguf`` is one of the hub. ``where`` is its place in the config. Raises EngineError if the file is not
    there, or is no GGUF file.
    """
    if not model.endswith(".gguf"):
        return None
    path = Path(config.resolve(model))
    if path.is_file():
        gguf.header(path)  # raises if it is no GGUF file
        return path
    raise EngineError(
        what="the model is not there",
        where=f"{config.path}: {where}",
        found=f"no file {model}",
        expected="a GGUF file, absolute or relative to the config",
        remedy="correct the path, or make the file as the config's comment says",
    )


def _arm_args(config: Config) -> Iterator[dict[str, JSON]]:
    """Yield every arm's arguments under their long names, the baseline's first."""
    return map(drafters.by_long_names, arm_args(config))


def _is_accelerated(args: Mapping[str, JSON]) -> bool:
    """Return True if layers may go to an accelerator.

    By default all that fit do. No layer does with 0 GPU layers or with ``device: none``.
    """
    return str(args.get("gpu-layers", args.get("n-gpu-layers", "auto"))) != "0" and args.get("device") != "none"


def _lora_files(name: str, value: JSON) -> list[tuple[str, float]]:
    """Return the files of the argument ``name`` with their scales.

    ``lora`` has files of scale 1, ``lora-scaled`` files with a scale each, ``FILE:SCALE``. ``value`` is one text with commas, or a list.
    """
    words = [word for entry in entries(value) for word in str(entry).split(",")]
    scale = _LORA[name]  # None where each file states its own
    return [_split_file_and_scale(word) if scale is None else (word, scale) for word in words]


def _split_file_and_scale(word: str) -> tuple[str, float]:
    """Return the two parts of ``FILE:SCALE``; raise EngineError without a file or a number."""
    path, _, scale = word.rpartition(":")
    try:
        number = float(scale)
    except ValueError:
        path, number = "", 0.0
    if not path:
        what, remedy = "an adapter without its scale", "write the scale after a colon, or name the file under `lora`"
        raise EngineError(what, where="engine.args.lora-scaled", found=word, expected="FILE:SCALE", remedy=remedy)
    return path, number


def _resolve_lora(name: str, value: JSON, config: Config) -> str:
    """Return the words of the argument ``name`` with the paths of its files resolved."""
    end = "" if _LORA[name] is not None else ":{:g}"
    return ",".join(f"{config.resolve(path)}{end.format(scale)}" for path, scale in _lora_files(name, value))


def _lora_field(scales: Mapping[int, float], count: int) -> Mapping[str, JSON]:
    """Return the field of a request's body with every adapter's scale.

    ``scales`` are those to set, by the adapter's number. The other ones of ``count`` adapters get 0, which turns them off.
    """
    return {"lora": [{"id": number, "scale": scales.get(number, 0.0)} for number in range(count)]}

"""A config file read: all of its problems at once, or a Config.

A problem is one mistake with its line and a remedy. A file has one ``engine``, or two builds of it under ``engines``: ``old`` is in use,
and ``new`` may replace it. Baseline and variants are overlays: settings laid over those of the engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import docker_settings, engines, gates, shipped, stack, validate, variables, waivers
from pytest_specdec.config.config import (
    ClusterSettings,
    Config,
    Endurance,
    EngineSettings,
    Limits,
    Overlay,
    Published,
    Reasoning,
    VariantSettings,
)
from pytest_specdec.config.engines import EngineName
from pytest_specdec.errors import ConfigError, RunError
from pytest_specdec.files import yaml
from pytest_specdec.files.run_directory import read_text
from pytest_specdec.model.baseline import Slo
from pytest_specdec.model.event import EventStep
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.workload import JSON, Family, Route

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import YamlDocument

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
"""Fields that engines add to them; most engines share most of these."""
_FORMATS = ("grammar", "json_object", "json_schema", "structural_tag", "text")
"""Kinds of ``response_format``."""
_FAMILIES = ("speed",)
"""Families that ``require`` takes too: an undecided speed then fails."""

FEATURES: frozenset[str] = frozenset((*_OPENAI, *_ENGINES, *_FORMATS, *_FAMILIES, "chat_logprobs", Route.RESPONSES.value))
"""Every name that ``require`` may hold."""


_SUFFIXES = (".yaml", ".yml")
MATRIX = "matrix"
"""The key that makes a file many configs."""


def load(path: Path, alone: EngineName | None = None) -> Config:
    """Return the config in the file ``path``, with every ``${VAR}`` as written.

    If the file has ``engines``, the config's engine is the new one and :attr:`Config.old` the old one. With ``alone`` its engine is that
    one of the two, as if the file named no other.

    Raises ConfigError with all of its problems at once, and for a file with ``matrix``, which is many configs. Models and programs are not
    looked for here; the engine does that.
    """
    text = read_config_text(path)
    document = yaml.load(text, str(path))
    if has_matrix(document):
        what, expected = "the config is a matrix of many pairs", "the config of one baseline and its variants"
        remedy = f"name the config of a cell; `python -m pytest_specdec matrix {path}` lists the cells"
        raise ConfigError(what, where=f"{path}:{document.line((MATRIX,))}  {MATRIX}", expected=expected, remedy=remedy)
    return read(document, path, text, alone)


def has_matrix(document: YamlDocument) -> bool:
    """Return True if a config file has ``matrix``."""
    return isinstance(document.data, Mapping) and MATRIX in document.data


def read(document: YamlDocument, path: Path, text: str, alone: EngineName | None = None) -> Config:
    """Return the config in ``document``, of the file ``path``.

    ``text`` is what a run keeps as its config. ``alone`` restricts the config to one of its two engines, as for :func:`load`, and the
    kept text too. Raises ConfigError with all problems at once, and for ``alone`` in a config of one engine.
    """
    # Those of `engines` come from comparing the two builds, which needs sections without problems.
    problems = list_problems(document) or tuple(engines.problems(document))
    if problems:
        raise validate.error(problems)
    data: Any = document.data
    if "engines" not in data:
        if alone:
            what, remedy = "the config names one engine", "leave out --specdec-engine, or write engines.old and engines.new"
            actual = f"--specdec-engine={alone} and no `engines`"
            raise ConfigError(what, where=str(path), found=actual, expected="two engines", remedy=remedy)
        return _make_config(data, document, path, text)
    if alone:
        config = _make_config(engines.restrict_to_engine(data, alone), document, path, engines.restricted_text(text, alone))
        return replace(config, lines=document.lines)  # of the file itself, for errors: the kept text is written anew
    config = _make_config(engines.restrict_to_engine(data, EngineName.NEW), document, path, text)
    return replace(config, old=_engine_settings(engines.restrict_to_engine(data, EngineName.OLD)["engine"]))


def list_problems(document: YamlDocument) -> tuple[Problem, ...]:
    """Return all problems of a config but those of its ``engines``.

    :func:`read` looks for these last. A file with ``matrix`` is many configs; ``document`` is then one of them, not the file.
    """
    # An axis of a matrix may bring the image that docker settings need. Waivers name variants, which a matrix makes anew.
    return (*list_file_problems(document), *docker_settings.problems(document), *waivers.problems(document))


def list_file_problems(document: YamlDocument) -> tuple[Problem, ...]:
    """Return the problems of a config file as it is written.

    Left out are problems that the values of a ``matrix`` may cause or mend, since they are laid over sections (:func:`list_problems`).
    """
    return (
        *validate.problems(document),
        *variables.find_written_secrets(document),
        *variables.find_misplaced(document),
        *variables.find_unused(document),
        *_check_json_args(document),
        *_check_required_features(document),
        *_check_event_steps(document),
        *gates.check_finite(document),
        *gates.check_upgrade(document),
        *stack.problems(document),
    )


def _make_config(data: Mapping[str, Any], document: YamlDocument, path: Path, text: str) -> Config:
    """Return the config of valid ``data`` of one engine.

    ``document`` has the lines of its file ``path``, and ``text`` is kept with a run.
    """
    return Config(
        name=path.stem,
        path=path,
        text=text,
        engine=_engine_settings(data["engine"]),
        variants=tuple(_variant_settings(name, settings) for name, settings in data["variants"].items()),
        baseline=Overlay(**_overlay_fields(data.get("baseline", {}))),
        draft=Overlay(**_overlay_fields(data.get("draft", {}))),
        speed=Overlay(**_overlay_fields(data["speed"])) if "speed" in data else None,
        stack=stack.read(data.get("stack", ()), path.parent),
        scorer=_engine_settings(data["scorer"]) if "scorer" in data else None,
        may_kill=data.get("may_kill", False),
        images=data.get("images"),
        public=tuple(data.get("public", ())),
        placement=Placement(data.get("placement", Placement.IN_TURN)),
        lossy=data.get("lossy", False),
        require=tuple(data.get("require", ())),
        allow_inconclusive=tuple(Family(name) for name in data.get("allow_inconclusive", ())),
        waivers=tuple(waivers.read_waivers(document, path.name)),
        gates=tuple(gates.read_gates(document, path.name)),
        golden=gates.read_golden(document),
        upgrade=gates.read_upgrade(document, path.name),
        slo=Slo(**data["slo"]) if "slo" in data else None,
        published=tuple(Published(**entry) for entry in data.get("published", ())),
        limits=_typed_limits(data.get("limits", {})),
        cluster=ClusterSettings(**data.get("cluster", {})),
        prompts=data.get("prompts", ""),
        reasoning=_reasoning_settings(**data.get("reasoning", {})),
        endurance=Endurance(**data.get("endurance", {})),
        between={name: _event_steps(steps, path.parent) for name, steps in data.get("between", {}).items()},
    )


def _reasoning_settings(*, tokens: int = 0, effort: str | list[str] | None = None, template: JSON = None) -> Reasoning:
    """Return the reasoning settings, with ``effort`` and ``template`` as tuples.

    The config may state each of them as one value or as a list.
    """
    efforts, templates = ([] if value is None else value if isinstance(value, list) else [value] for value in (effort, template))
    return Reasoning(
        tokens=tokens,
        effort=tuple(map(str, efforts)),
        template=tuple(arguments for arguments in templates if isinstance(arguments, Mapping)),
    )


def _event_steps(steps: Sequence[Mapping[str, Any]] | None, folder: Path) -> tuple[EventStep, ...]:
    """Return the steps of one event between requests; none for null.

    Relative paths in commands start at ``folder``, the config's.
    """
    return tuple(
        EventStep(path=step.get("url", ""), body=step.get("body", {}), command=stack.resolve_words(step.get("command", ()), folder))
        for step in steps or ()
    )


def find(name: str, here: Path, root: Path | None = None) -> Path:
    """Return the path of the config file called ``name``.

    ``name`` is a path, absolute or relative to a folder, and may lack its suffix. It is looked for in ``here``, then in ``root`` if given,
    then in ``suites/configs`` of ``root`` and of ``here``, then among the configs of this package. Raises ConfigError, with all names and
    folders, if there is no such file, or if ``name`` is empty.
    """
    roots = tuple(dict.fromkeys(folder for folder in (here, root) if folder is not None))
    folders = (*roots, *(folder / "suites" / "configs" for folder in reversed(roots)), shipped.CONFIGS)
    for folder in folders if name else ():
        for suffix in ("", *_SUFFIXES):
            if (path := folder / Path(f"{name}{suffix}").expanduser()).is_file():
                return path
    config_names = list(dict.fromkeys(stem for folder in folders for stem in sorted(_config_names(folder))))
    hint = validate.nearest(Path(name).stem, config_names)
    raise ConfigError(
        f"no config {name or repr(name)}" + (f"; {hint}" if hint else ""),
        where=", ".join(str(folder) for folder in folders if folder.is_dir()),
        found="no such file",
        expected=f"a path, or one of {', '.join(config_names)}" if config_names else "a path",
        remedy=f"python -m pytest_specdec init {Path(name).stem or 'my-model'} writes one",
    )


def _config_names(folder: Path) -> Iterator[str]:
    return (path.stem for suffix in _SUFFIXES for path in folder.glob(f"*{suffix}"))


def read_config_text(path: Path) -> str:
    """Return the text of a config file; raise ConfigError if unreadable."""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError, RunError) as error:
        what, reason = "the config cannot be read", error.found if isinstance(error, RunError) else str(error)
        raise ConfigError(what, where=str(path), found=reason, expected="a YAML file in UTF-8") from None


def _check_json_args(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for every ``args`` string that holds no JSON mapping.

    The JSON Schema checks ``args`` that are mappings.
    """
    for path, args in _all_args(document.data):
        if isinstance(args, str) and not isinstance(_parse_arguments(args), Mapping):
            yield validate.problem(
                document, path, f"a string that holds no JSON mapping: {args[:40]!r}", "a mapping, or JSON that holds one"
            )


def _check_required_features(document: YamlDocument) -> Iterator[Problem]:
    """Yield a problem for every unknown feature under ``require``.

    Such a requirement could never fail, since no request asks for the feature.
    """
    names = document.data.get("require") if isinstance(document.data, Mapping) else None
    for index, name in enumerate(names if isinstance(names, list) else ()):
        if isinstance(name, str) and name.islower() and name not in FEATURES:  # the schema checks other spellings
            hint = validate.nearest(name, FEATURES)
            expected = "a feature that a request can ask for, such as json_schema, top_k or logprobs"
            yield validate.problem(document, ("require", index), f"{name!r}, which no request asks for", expected, hint)


def _check_event_steps(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of the steps under ``between``, events between requests.

    A step must have either ``url`` or ``command``, a ``body`` beside ``url`` alone, and no variable in its path.
    """
    events = document.data.get("between") if isinstance(document.data, Mapping) else None
    for name, steps in events.items() if isinstance(events, Mapping) else ():
        for index, step in enumerate(steps if isinstance(steps, list) else ()):
            if isinstance(step, Mapping) and ("url" in step) is ("command" in step):
                keys = "url and command" if "url" in step else "neither url nor command"
                yield validate.problem(document, ("between", str(name), index), keys, "one of url and command", "write two steps for both")
            elif isinstance(step, Mapping) and "body" in step and "command" in step:
                yield validate.problem(document, ("between", str(name), index, "body"), "a body of a command", "a body beside url alone")
            if isinstance(step, Mapping) and (names := variables.names(step.get("url"))):
                path, expected = ("between", str(name), index, "url"), "a path; variables stand in body and command"
                yield validate.problem(document, path, f"${{{names[0]}}} in a path", expected)


def _all_args(data: JSON) -> Iterator[tuple[yaml.KeyPath, JSON]]:
    """Yield every ``args`` of a config with its path."""
    yield from engines.arguments_by_place(data) if isinstance(data, Mapping) else ()
    for key, section in data.items() if isinstance(data, Mapping) else ():
        if key in {"engine", "scorer", "baseline", "draft", "speed"} and isinstance(section, Mapping):
            yield (key, "args"), section.get("args")
        if key == "stack" and isinstance(section, list):
            yield from ((("stack", at, "args"), process.get("args")) for at, process in enumerate(section) if isinstance(process, Mapping))
        if key == "variants" and isinstance(section, Mapping):
            yield from (
                (("variants", name, "args"), variant.get("args")) for name, variant in section.items() if isinstance(variant, Mapping)
            )


def _parse_arguments(args: JSON) -> JSON:
    """Return ``args``, parsed if they are a string of JSON; None if that fails."""
    try:
        return json.loads(args) if isinstance(args, str) else args
    except ValueError:
        return None


def _variant_settings(name: str, settings: Mapping[str, Any]) -> VariantSettings:
    """Return the settings of the variant called ``name``."""
    depends = settings.get("drafting_depends_on_load", False)
    draft_context = settings.get("draft_context", 0)
    return VariantSettings(name=name, drafting_depends_on_load=depends, draft_context=draft_context, **_overlay_fields(settings))


def _overlay_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stated fields that the engine and every overlay have in common.

    ``args`` and ``env`` are returned in any case, values of ``env`` as texts.
    """
    return {
        "args": _parse_arguments(settings.get("args", {})),
        "env": {name: str(value) for name, value in settings.get("env", {}).items()},
        **{name: settings[name] for name in ("url", "served_as", "headers", "body") if name in settings},
        **({"metrics_url": stack.addresses(settings["metrics_url"])} if "metrics_url" in settings else {}),
    }


def _engine_settings(settings: Mapping[str, Any]) -> EngineSettings:
    docker, environment = docker_settings.settings(settings.get("docker", {})), tuple(settings.get("environment", ()))
    return EngineSettings(**{**settings, **_overlay_fields(settings), "docker": docker, "environment": environment})


def _typed_limits(limits: Mapping[str, Any]) -> Limits:
    """Return the limits, seconds as floats and listed devices as texts."""
    typed: dict[str, Any] = {name: float(value) if name.endswith("_s") else value for name, value in limits.items()}
    if isinstance(devices := limits.get("devices"), list):
        typed["devices"] = tuple(map(str, devices))
    return Limits(**typed)

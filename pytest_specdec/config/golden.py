"""Golden floors: the lengths of a golden file, compared with the variants of a config in every condition that both state.

A golden file has acceptance lengths, tokens per verify step, as InferenceX (by model, thinking mode and draft tokens) or TensorRT-LLM (by
test) has published them. The thinking mode is reasoning on or off. A floor is the lowest length that passes, for one pair: a variant beside
the baseline. An empty floor asks nothing and has the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_specdec.config import golden_file, validate
from pytest_specdec.config.golden_file import KEY, METHODS
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.golden import GoldenFloor, GoldenForm, Thinking
from pytest_specdec.model.pair import DraftKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_specdec.config.config import Config, GoldenSettings, Reasoning
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath
    from pytest_specdec.model.golden import GoldenFile, GoldenLength
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.model.workload import JSON

__all__ = ["check", "floors"]

_UNSTATED_IN_FILES = ("prompts", "temperature", "precision")
"""What no file states: InferenceX measures the coding prompts of SPEED-Bench as the model is sampled in production, TensorRT-LLM a data
set of the test."""
_SWITCHES = ("enable_thinking", "thinking", "thinking_mode")
"""Arguments of chat templates that switch reasoning."""
_ON, _OFF = {"true", "on", "enabled"}, {"false", "off", "disabled"}
_MTP_TOO = {"eagle", "nextn"}
"""Methods by whose names SGLang also means layers of multi-token prediction (mtp)."""
_IN_JSON = re.compile(r"[^\s\"'{}\[\],]+")
"""A text of an argument that is JSON itself."""


def floors(config: Config, pairs: Sequence[Pair]) -> tuple[GoldenFloor, ...]:
    """Return the floor of each pair by the config's golden file.

    () if the config names no file. A condition that file and config both state, such as the number of draft tokens, must agree: otherwise
    the pair's floor is empty and has the reason. A condition that either leaves open is listed as not compared.

    Raises ConfigError if the file cannot be used at all, with the place and what to change.
    """
    file, settings = golden_file.read(config), config.golden
    if file is None or settings is None:
        return ()
    if problems := tuple(_settings_problems(config, settings, file)):
        raise validate.error(problems)
    if file.form is GoldenForm.BY_TEST:
        return tuple(_test_floor(file, settings.tests.get(pair.name, ""), pair) for pair in pairs)
    return tuple(_model_floor(config, settings, file, pair) for pair in pairs)


def check(config: Config, golden_floors: Sequence[GoldenFloor]) -> None:
    """Raise ConfigError if a golden file asks nothing of any variant.

    A gate that can never fail would look like one that was met.
    """
    if golden_floors and all(floor.at_least is None for floor in golden_floors):
        reasons = "\n".join(f"{floor.pair}: {floor.reason}" for floor in golden_floors)
        remedy = f"name another file or entry under {validate.dotted_path(KEY)}, or state a floor of your own: at_least"
        what = "the golden file has no length for any variant"
        raise ConfigError(
            what,
            where=f"{_place(config)}  {validate.dotted_path(KEY)}",
            found=reasons,
            expected="a variant that agrees with the file in model, thinking, draft tokens and way of drafting",
            remedy=remedy,
        )


def _place(config: Config) -> str:
    return f"{config.path}:{config.document().line(KEY)}"


def _settings_problems(config: Config, settings: GoldenSettings, file: GoldenFile) -> Iterator[Problem]:
    """Yield the problems of the config's settings for this file."""
    if file.form is GoldenForm.BY_TEST:
        yield from _tests_problems(config, settings, file)
        return
    if settings.tests:
        yield _problem(config, ("tests",), "tests", f"none: {file.name} has lengths by model, thinking and draft tokens")
    if mismatch := _find_mismatch(config, settings, file):
        yield mismatch


def _find_mismatch(config: Config, settings: GoldenSettings, file: GoldenFile) -> Problem | None:
    """Return the first problem of model or thinking mode; None without any.

    ``file`` is one of InferenceX. ``settings`` may name the model and the mode that count in it.
    """
    models = sorted({length.model for length in file.lengths})
    model = settings.model
    if model and model not in models:
        return _problem(config, ("model",), repr(model), f"a model of {file.name}: {', '.join(models)}", validate.nearest(model, models))
    # Without a named model the one that the config serves counts.
    if not model and not _served_names(config) & set(map(str.lower, models)):
        remedy = f"if it is the same model: golden: {{file: {settings.file}, model: {models[0]}}}"
        return _problem(config, (), f"a file of {' and '.join(models)}", f"one of {config.engine.model}, which the config serves", remedy)
    # A named mode must not contradict `reasoning`, by which chat requests switch it.
    if settings.thinking and (other_modes := _reasoning_modes(config.reasoning) - {settings.thinking}):
        return _problem(config, ("thinking",), settings.thinking, f"{min(other_modes)}, which `reasoning` makes chat requests ask for")
    # With lengths in both modes the config has to choose one.
    if len(_file_modes(_lengths_of_model(config, settings, file))) > 1 and not _config_modes(config, settings):
        remedy = "say it under reasoning.template, such as {enable_thinking: false}, or as golden.thinking: on or off"
        return _problem(config, (), "lengths with thinking on and off", "the one that the config's chat requests ask for", remedy)
    return None


def _tests_problems(config: Config, settings: GoldenSettings, file: GoldenFile) -> Iterator[Problem]:
    """Yield the problems of settings for a file of TensorRT-LLM.

    Settings must name a test by variant, and no model or thinking mode. Each variant must be in the config, and its test in the file with a
    lowest length.
    """
    tests = {length.name: length for length in file.lengths}
    variants = [variant.name for variant in config.variants]
    for key in ("model", "thinking"):
        if getattr(settings, key):
            yield _problem(config, (key,), key, f"none: {file.name} has lengths by test")
    if not settings.tests:
        remedy = f"golden: {{file: {settings.file}, tests: {{{variants[0]}: {next(iter(tests))!r}}}}}"
        yield _problem(config, ("tests",), "nothing", f"the test of each variant: {file.name} has its lengths by test", remedy)
    for variant, test in settings.tests.items():
        if variant not in variants:
            yield _problem(config, ("tests", variant), "no such variant", " or ".join(variants), validate.nearest(variant, variants))
        elif test not in tests:
            yield _problem(
                config, ("tests", variant), repr(test), f"one of the {len(tests)} tests in {file.name}", _nearest_test(test, tests)
            )
        elif tests[test].at_least is None:
            expected = f"a number at {file.name}:{tests[test].line}: it is not measured yet"
            yield _problem(config, ("tests", variant), f"{test} with min_al: null", expected)


def _nearest_test(test: str, tests: Iterable[str]) -> str:
    names = list(tests)
    return validate.nearest(test, names) or f"such as {names[0]!r}"


def _problem(config: Config, path: KeyPath, found: str, expected: str, suggestion: str = "") -> Problem:
    document = config.document()
    return validate.problem(document, (*KEY, *path), found, expected, suggestion)


def _served_names(config: Config) -> set[str]:
    """Return the names of the served model in lower case, without their folders."""
    names = (config.engine.model, config.engine.served_as, config.baseline.served_as)
    return {name.rstrip("/").rsplit("/", 1)[-1].lower() for name in names if name}


def _lengths_of_model(config: Config, settings: GoldenSettings, file: GoldenFile) -> tuple[GoldenLength, ...]:
    names = {settings.model.lower()} if settings.model else _served_names(config)
    return tuple(length for length in file.lengths if length.model.lower() in names)


def _file_modes(lengths: Iterable[GoldenLength]) -> set[Thinking]:
    return {length.thinking for length in lengths if length.thinking is not None}


def _config_modes(config: Config, settings: GoldenSettings) -> set[Thinking]:
    """Return the thinking modes that chat requests ask for; empty if unknown."""
    return {settings.thinking} if settings.thinking else _reasoning_modes(config.reasoning)


def _reasoning_modes(reasoning: Reasoning) -> set[Thinking]:
    """Return the thinking modes that template arguments and efforts switch to.

    Only the effort ``none`` shows a mode, the one without reasoning.
    """
    switches = [str(template[name]).lower() for template in reasoning.template for name in _SWITCHES if name in template]
    modes = {Thinking.ON for switch in switches if switch in _ON} | {Thinking.OFF for switch in switches if switch in _OFF}
    return modes | {Thinking.OFF for effort in reasoning.effort if effort == "none"}


def _model_floor(config: Config, settings: GoldenSettings, file: GoldenFile, pair: Pair) -> GoldenFloor:
    """Return the floor of a pair by a file of InferenceX.

    It follows from the file's length in the config's thinking mode for the variant's number of draft tokens. The floor is empty, with the
    reason, if there is not exactly one such length, or if the variant drafts in another way than the file's.
    """
    lengths, config_modes = _lengths_of_model(config, settings, file), _config_modes(config, settings)
    file_modes = _file_modes(lengths)
    if len(config_modes) > 1:
        return _no_floor(file, pair, "chat requests ask with thinking on and off, and the file has each alone")
    if method_reason := _other_method(config, file, pair):
        return _no_floor(file, pair, method_reason)
    # A single mode: where the config states none, the file has lengths in one only (_find_mismatch).
    mode = next(iter(config_modes or file_modes))
    if mode not in file_modes:
        return _no_floor(file, pair, f"the file has no length with thinking {mode}")
    draft_tokens = pair.variant.draft.tokens
    if not draft_tokens:
        return _no_floor(file, pair, "its draft tokens per step are unknown, and the file has its lengths by them")
    by_tokens = {length.draft_tokens: length for length in lengths if length.thinking is mode}
    if draft_tokens not in by_tokens:
        numbers = ", ".join(map(str, sorted(by_tokens)))
        return _no_floor(file, pair, f"it drafts {draft_tokens} tokens a step, and the file has {numbers}")
    entry = by_tokens[draft_tokens]
    origin = f"{1.0 - golden_file.TOLERANCE:.0%} of {entry.length:g}"
    uncompared_mode = () if config_modes else (f"thinking ({mode} there)",)
    return _floor(file, entry, pair, origin, (*_uncompared_drafter(config, file, pair), *uncompared_mode, *_UNSTATED_IN_FILES))


def _test_floor(file: GoldenFile, test: str, pair: Pair) -> GoldenFloor:
    """Return the floor of a pair by a file of TensorRT-LLM.

    ``test`` is the test named for the variant. If it is not in the file, or empty, the floor is empty and has the reason.
    """
    entry = next((length for length in file.lengths if length.name == test), None)
    if entry is None:
        return _no_floor(file, pair, f"{validate.dotted_path(KEY)}.tests names no test for it")
    # In words: the floor is the file's lowest length, min_al, with the mean beside it if that was measured.
    origin = "min_al" if entry.length is None else f"min_al of {entry.length:.4g}"
    # A file by test states no condition with which a variant could be compared.
    uncompared = ("model", "way of drafting", "draft tokens", "thinking", *_UNSTATED_IN_FILES)
    return _floor(file, entry, pair, origin, uncompared)


def _floor(file: GoldenFile, entry: GoldenLength, pair: Pair, origin: str, uncompared: tuple[str, ...]) -> GoldenFloor:
    """Return the floor of a pair by one entry of the file.

    It is the lowest length that passes, ``entry.at_least``; ``entry.length``, the mean, is for reports. A verify step of k draft tokens
    emits 1 to k + 1 tokens: the floor is empty if every run reaches it, or none can. k is 0 if unknown. ``origin`` says how the floor
    follows from the file, ``uncompared`` names the conditions that were not compared.
    """
    draft_tokens, least = pair.variant.draft.tokens, entry.at_least or 0.0  # None is refused before (_tests_problems)
    if least <= 1.0:
        return _no_floor(file, pair, f"{origin} is {least:g}, and every step brings a token")
    if 0 < draft_tokens < least - 1.0:
        return _no_floor(file, pair, f"{origin} is {least:g}, and {draft_tokens} draft tokens give at most {draft_tokens + 1}")
    source = f"{file.name}:{entry.line} {entry.name}"
    return GoldenFloor(pair=pair.name, source=source, at_least=least, length=entry.length, origin=origin, uncompared=uncompared)


def _no_floor(file: GoldenFile, pair: Pair, reason: str) -> GoldenFloor:
    return GoldenFloor(pair=pair.name, source=file.name, reason=reason)


def _other_method(config: Config, file: GoldenFile, pair: Pair) -> str:
    """Return the reason why variant and file draft in different ways.

    A golden file is for drafts by heads or layers on the target; ``file.method`` names them, such as eagle3, or is empty. The result is
    empty if nothing shows another way.
    """
    kind = pair.variant.draft.kind
    if kind is DraftKind.NGRAM:  # another way than heads or layers of any name
        return f"it drafts by prompt lookup, and the file is of {file.method or 'heads or draft layers, as all of InferenceX are'}"
    if not file.method:
        return ""
    if kind is DraftKind.MODEL:
        return f"it drafts with a draft model, and the file is of {file.method}"
    variant_methods = _words_in(_names_in_arguments(config, pair)) & METHODS
    if file.method in variant_methods:
        return ""
    # EAGLE and NEXTN show no other method: SGLang calls layers of multi-token prediction so too.
    others = sorted(variant_methods - _MTP_TOO)
    return f"it drafts by {others[0]}, and the file is of {file.method}" if others else ""


def _uncompared_drafter(config: Config, file: GoldenFile, pair: Pair) -> Iterator[str]:
    """Yield the conditions of the drafter that cannot be compared.

    These are the file's way of drafting and its draft weights, each unless the variant's arguments name the same. A way is a word of any
    name there, such as eagle3 in qwen3-8b-eagle3; weights are a whole name, without its owner or folder.
    """
    argument_names = _names_in_arguments(config, pair)
    file_weights = file.draft_model.rsplit("/", 1)[-1].lower()
    if not file.method:
        yield "way of drafting"
    elif file.method not in _words_in(argument_names):
        yield f"way of drafting ({file.method} there)"
    if not file.draft_model:
        yield "draft weights"
    elif file_weights not in argument_names:
        yield f"draft weights ({file.draft_model} there)"


def _words_in(names: Iterable[str]) -> set[str]:
    """Return the words of lower-case names, split at other characters."""
    return {word for name in names for word in re.findall(r"[a-z0-9]+", name)}


def _names_in_arguments(config: Config, pair: Pair) -> set[str]:
    """Return the texts in a variant's arguments, lower case and without folders."""
    texts = (text for leaf in _nested_texts(config.variant(pair.name).args) for text in _IN_JSON.findall(leaf))
    return {text.rstrip("/").rsplit("/", 1)[-1].lower() for text in texts}


def _nested_texts(value: JSON) -> Iterator[str]:
    """Yield every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _nested_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _nested_texts(item)

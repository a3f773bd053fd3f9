"""A golden file, in the form that InferenceX or TensorRT-LLM commits, read with all of its problems at once.

It has acceptance lengths, tokens per verify step: by model, thinking mode (reasoning on or off) and draft tokens, as InferenceX has them,
or by test, as TensorRT-LLM has them. Problems are collected in a list, so that one error reports all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from pytest_specdec.config import validate
from pytest_specdec.errors import ConfigError, RunError
from pytest_specdec.files import yaml
from pytest_specdec.files.run_directory import read_text
from pytest_specdec.model.golden import GoldenFile, GoldenForm, GoldenLength, Thinking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

__all__ = ["KEY", "METHODS", "TOLERANCE", "parse", "read"]

KEY = ("gates", "acceptance_length", "golden")
"""Where a config names the file."""
TOLERANCE = 0.05
"""Part of a mean by which a run may be lower where the file has no lowest length. InferenceX states none: it forces its means on engines
that it compares. TensorRT-LLM writes 95 % of the mean into ``min_al``, and vLLM's own tests pass from 95 % on."""
METHODS = frozenset({"dflash", "dspark", "eagle", "eagle3", "medusa", "mtp", "nextn"})
"""Ways of drafting by heads or layers, as engines and file names spell them."""
_METADATA = "_metadata"
_DRAFT_MODEL = "draft-model"
_MODES = {f"thinking_{mode}": mode for mode in Thinking}
_MEAN, _LEAST = "ref_al", "min_al"
_FORMS = "lengths by model, model: {thinking_on: {3: 2.51}}, or by test, TestA::test_b: {ref_al: 2.6, min_al: 2.5}"


def read(config: Config) -> GoldenFile | None:
    """Return the golden file of ``config``.

    None if the config names none. Raises ConfigError with all problems of the file and their lines.
    """
    if config.golden is None:
        return None
    path = Path(config.resolve(config.golden.file))
    return parse(yaml.load(_read_golden_text(config, path), str(path)))


def _describe_error(error: OSError | UnicodeDecodeError | RunError) -> str:
    """Return the reason why a file could not be read."""
    if isinstance(error, RunError):
        return error.found
    return str(error.strerror if isinstance(error, OSError) else error)


def _read_golden_text(config: Config, path: Path) -> str:
    """Return the text of the golden file.

    Raises ConfigError if it cannot be read; for a missing file the error suggests one with a similar name.
    """
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError, RunError) as error:
        folder = (config.path.parent / path).parent  # a missing file's path is as written, maybe relative to the config
        yaml_files = [file.name for file in folder.glob("*.y*ml") if file.name != config.path.name]
        hint = validate.nearest(path.name, yaml_files if isinstance(error, FileNotFoundError) else [])
        raise ConfigError(
            "the golden file cannot be read" + (f"; {hint}" if hint else ""),
            where=f"{config.path}:{config.document().line(KEY)}  {validate.dotted_path(KEY)}",
            found=f"{path}: {_describe_error(error)}",
            expected="a YAML file in UTF-8, by its path beside the config",
        ) from None


def parse(document: YamlDocument) -> GoldenFile:
    """Return the golden file in ``document``, with all of its lengths.

    Raises ConfigError with all of its problems, or if it has no length.
    """
    data = document.data if isinstance(document.data, Mapping) else {}
    problems: list[Problem] = []
    if _is_by_test(data):
        form, lengths = GoldenForm.BY_TEST, tuple(_read_tests(document, data, problems))
    else:
        form, lengths = GoldenForm.BY_MODEL, tuple(_read_models(document, data, problems))
    if not lengths and not problems:
        problems.append(validate.problem(document, (), "no length", _FORMS))
    if problems:
        raise validate.error(problems, "the golden file")
    metadata = data.get(_METADATA)
    draft_model = metadata.get(_DRAFT_MODEL) if isinstance(metadata, Mapping) else None
    name = PurePath(document.source).name
    return GoldenFile(name=name, form=form, lengths=lengths, method=_method_in_name(name), draft_model=str(draft_model or ""))


def _is_by_test(data: Mapping[str, JSON]) -> bool:
    return any("::" in key or (isinstance(entry, Mapping) and {_MEAN, _LEAST} & entry.keys()) for key, entry in data.items())


def _method_in_name(name: str) -> str:
    """Return the way of drafting in a file's name, ``mtp`` of ``qwen3.8_mtp.yaml``; empty without one."""
    return next((word for word in re.split(r"[_-]", name.lower().rsplit(".", 1)[0]) if word in METHODS), "")


def _read_models(document: YamlDocument, data: Mapping[str, JSON], problems: list[Problem]) -> Iterator[GoldenLength]:
    """Yield the lengths in a file of InferenceX.

    ``data`` has them by model, thinking mode and number of draft tokens. An invalid entry adds a problem to ``problems`` instead.
    """
    for model, modes in data.items():
        if model == _METADATA:  # no model: it describes the file
            continue
        if not isinstance(modes, Mapping) or not modes:
            problems.append(validate.problem(document, (model,), _describe_kind(modes), _FORMS))
            continue
        for mode, by_tokens in modes.items():
            path = (model, mode)
            if mode not in _MODES or not isinstance(by_tokens, Mapping) or not by_tokens:
                kind = _describe_kind(by_tokens) if mode in _MODES else "an unknown mode"
                problems.append(validate.problem(document, path, kind, "thinking_on or thinking_off, with a length by draft tokens"))
                continue
            for tokens, value in by_tokens.items():
                length = _read_golden_length(document, (*path, tokens), value, problems)
                yield from () if length is None else (length,)


def _read_golden_length(document: YamlDocument, path: KeyPath, value: JSON, problems: list[Problem]) -> GoldenLength | None:
    """Return one expected acceptance length of a golden file.

    It is a model's mean number of tokens per verify step. The lowest that passes is 95 % of it (see ``TOLERANCE``). ``path`` holds the
    model, a thinking mode of ``_MODES`` and the number of draft tokens per step, ``value`` the length. Returns None for any other number or
    length, whose problem is added to ``problems``.
    """
    model, mode, tokens = map(str, path)
    if not tokens.isdecimal() or int(tokens) < 1:
        problems.append(validate.problem(document, path, "this key", "the draft tokens per step, from 1 on"))
        return None
    length = _number(value)
    if length is None or not 1.0 <= length <= int(tokens) + 1:
        expected = f"a number from 1 to {int(tokens) + 1}: {tokens} draft tokens, and one token comes on top"
        problems.append(validate.problem(document, path, _describe_kind(value), expected))
        return None
    return GoldenLength(
        name=validate.dotted_path(path),
        line=document.line(path),
        length=length,
        at_least=round((1.0 - TOLERANCE) * length, 4),
        model=model,
        thinking=_MODES[mode],
        draft_tokens=int(tokens),
    )


def _read_tests(document: YamlDocument, data: Mapping[str, JSON], problems: list[Problem]) -> Iterator[GoldenLength]:
    """Yield the lengths in a file of TensorRT-LLM.

    The file has a mean and a lowest length by the id of a test, either of them null before it is measured. The problems of invalid
    entries are added to ``problems`` instead. An entry is invalid without a lowest length, with a length that is no number from 1 on, or
    with a lowest length above the mean.
    """
    for test, entry in data.items():
        if not isinstance(entry, Mapping) or _LEAST not in entry:
            kind = _describe_kind(entry) if not isinstance(entry, Mapping) else "no min_al"
            problems.append(validate.problem(document, (test,), kind, "ref_al and min_al, the mean and the lowest length"))
            continue
        wrong_keys = [key for key in (_MEAN, _LEAST) if entry.get(key) is not None and (_number(entry[key]) or 0.0) < 1.0]
        expected = "a number from 1 on, or null before it is measured"
        problems.extend(validate.problem(document, (test, key), _describe_kind(entry[key]), expected) for key in wrong_keys)
        mean, least = _number(entry.get(_MEAN)), _number(entry[_LEAST])
        if not wrong_keys and mean is not None and least is not None and least > mean:
            problems.append(validate.problem(document, (test, _LEAST), f"{least:g}", f"at most ref_al, {mean:g}"))
        elif not wrong_keys:
            yield GoldenLength(name=test, line=document.line((test,)), length=mean, at_least=least)


def _number(value: JSON) -> float | None:
    """Return ``value`` as a finite number; None if it is none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and isinstance(value, int | float) else None


def _describe_kind(value: JSON) -> str:
    """Return in words the value that stands in place of an expected one."""
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    return "nothing" if value is None else "a list" if isinstance(value, list | tuple) else f"{value!r}"

"""``engine.docker`` of a config, settings of ``docker run`` for an engine's image: read and checked.

A run names, connects, watches and stops the container itself. Options of ``docker run`` that would take this from it are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import validate
from pytest_specdec.config.config import DockerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

_NETWORK = "the server listens on the host's network, where its port is watched"
_TERMINAL = "the server has no terminal, and its output is its log"
_REFUSED = {
    "--name": "the container has a name of ours, by which it is stopped",
    "--rm": "the container is removed at its end anyway",
    "--restart": "a server that dies is started again by the capture, which counts it",
    **dict.fromkeys(("-d", "--detach"), "the server ends with its client, and the client's output is its log"),
    **dict.fromkeys(("--network", "--net", "-p", "--publish", "-P", "--publish-all"), _NETWORK),
    **dict.fromkeys(("-i", "--interactive", "-t", "--tty"), _TERMINAL),
    "--entrypoint": "write engine.docker.entrypoint",
}
"""Options that would take the container out of our hands, and why."""
_SWITCHES = "ditP"
"""Short options without a value, which may stand together: ``-it``."""
_ENVIRONMENT = ("-e", "--env")
_VALUE = "write the variable under env: its value then reaches no command line"
_UNSPLIT = "an open quote"


def settings(data: Mapping[str, Any]) -> DockerSettings:
    """Return the settings of ``engine.docker``, a section free of :func:`problems`.

    A list of GPUs becomes a text of numbers with commas, as docker takes it.
    """
    gpus = data.get("gpus", "")
    # An empty list of numbers asks for no device.
    return DockerSettings(
        options=tuple(words(data.get("options", ()))),
        volumes=dict(data.get("volumes", {})),
        gpus=gpus if isinstance(gpus, str) else ",".join(map(str, gpus)) or "none",
        entrypoint=data.get("entrypoint"),
    )


def words(options: Sequence[str]) -> Iterator[str]:
    """Yield the words of ``options``, as a shell splits them.

    One entry of ``options`` may hold an option together with its value.
    """
    for option in options:
        yield from _split_words(option)


def option_values(option_words: Sequence[str], *names: str) -> Iterator[str]:
    """Yield the values of an option under any of its ``names``.

    ``option_words`` are words of a command line. A value stands as in ``--volume x``, ``--volume=x``, ``-v x`` or ``-vx``: a short name
    needs nothing between.
    """
    for index, word in enumerate(option_words):
        for name in names:
            is_short = len(name) == len("-v")
            if word == name:
                yield from option_words[index + 1 : index + 2]
            elif word.startswith(name if is_short else f"{name}="):
                yield word.removeprefix(name).removeprefix("=")


def problems(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of ``docker`` that the JSON Schema cannot express.

    These are settings without an image, and options that would take the container out of this package's control.
    """
    data = document.data if isinstance(document.data, Mapping) else {}
    engines = data.get("engines")
    builds: dict[KeyPath, JSON] = {("engines", name): build for name, build in engines.items()} if isinstance(engines, Mapping) else {}
    sections: dict[KeyPath, JSON] = {("engine",): data.get("engine"), **builds, ("scorer",): data.get("scorer")}
    for path, engine in sections.items():
        docker = engine.get("docker") if isinstance(engine, Mapping) else None
        if not isinstance(engine, Mapping) or not isinstance(docker, Mapping):
            continue
        if not any(isinstance(section, Mapping) and "image" in section for section in _sections_with_image(path, sections)):
            place = validate.dotted_path(path)
            yield validate.problem(document, (*path, "docker"), "settings of docker without an image", f"{place}.image beside them")
        options = docker.get("options")
        yield from _check_docker_options(document, (*path, "docker", "options"), options if isinstance(options, list) else [])


def _sections_with_image(path: KeyPath, sections: Mapping[KeyPath, JSON]) -> Iterable[JSON]:
    """Return the sections that may have the image for the ``docker`` at ``path``.

    ``sections`` are by place the engine, its builds under ``engines``, and the scorer, an engine of its own. Each build is laid over the
    engine: the image may stand in one of the two and ``docker`` in the other.
    """
    if path == ("scorer",):
        return [sections[path]]
    if path == ("engine",):
        return [section for place, section in sections.items() if place != ("scorer",)]
    return [sections[path], sections[("engine",)]]


def _check_docker_options(document: YamlDocument, path: KeyPath, options: Sequence[JSON]) -> Iterator[Problem]:
    """Yield a problem for every forbidden word in the options of ``docker run``."""
    # Not reset for each entry: an option's value may stand in the entry after it.
    previous_word = ""
    for index, option in enumerate(options):
        for word in _split_words(option) if isinstance(option, str) else ():
            if reason := _refusal_reason(word, previous_word):
                option_name, expected = word.partition("=")[0], "an option that leaves the container to us"
                yield validate.problem(document, (*path, index), option_name, expected, reason)
            previous_word = word


def _split_words(option: str) -> list[str]:
    """Return the words of an option, as a shell splits it.

    A text with an open quote cannot be split; it gives the one word ``_UNSPLIT``, which is refused later.
    """
    try:
        return shlex.split(option)
    except ValueError:
        return [_UNSPLIT]


def _refusal_reason(word: str, previous_word: str) -> str:
    """Return the reason to refuse a word of the options; empty if it is allowed.

    Refused are a text with an open quote, the options of ``_REFUSED``, and the value of an environment variable: ``--env=NAME=value``, or
    ``NAME=value`` after ``--env`` as the ``previous_word``. Values belong under the config's ``env``, so that they reach no command line.
    """
    if word == _UNSPLIT:  # put in place of a text with an open quote
        return "close its quotes"
    options = tuple(_options_of(word))
    if previous_word in _ENVIRONMENT and "=" in word:
        return _VALUE
    if any(name in _ENVIRONMENT and "=" in value for name, value in options):
        return _VALUE
    return next((_REFUSED[name] for name, _ in options if name in _REFUSED), "")


def _options_of(word: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each option that a word gives, with its value.

    The value is empty if the word holds none. A word of joined short options, such as ``-it``, gives several, up to the first with a value:
    the rest of the word is that value, as in ``-itp8000:8000``.
    """
    if word.startswith("--"):
        name, _, value = word.partition("=")
        yield name, value
    elif word.startswith("-"):
        for value_start, letter in enumerate(word[1:], 2):
            if letter not in _SWITCHES:  # it takes a value
                yield f"-{letter}", word[value_start:].removeprefix("=")
                return
            yield f"-{letter}", ""

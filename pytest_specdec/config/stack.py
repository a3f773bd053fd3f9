"""``stack`` of a config: the processes that are one server together, their ports, and the placeholders in their words.

Every arm, the baseline or a variant, is such a server. Requests go to the process that is ``asked``; counters of tokens are read from those
that are ``counted``. A process with ``kind: engine`` has the engine's own command. ``{port.NAME}`` is the port of a process, or a further
one of its ``ports``; ``{args}`` are the arguments of the arm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytest_specdec.config import engines, validate
from pytest_specdec.config.config import ARGS, StackProcess

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.yaml import KeyPath, YamlDocument
    from pytest_specdec.model.workload import JSON

__all__ = ["STACK", "addresses", "fill", "placeholders", "port_names", "problems", "read", "resolve_words", "uses_port"]

STACK = "stack"
"""The key of a config."""
_PLACEHOLDER = re.compile(r"(?<!\$)\{([a-z]+)(?:\.([a-z0-9-]+))?\}")
_PORT = "port"
_WORDS = ("{host}", "{model}", "{program}", "{port.NAME}", ARGS)
_ADDRESSES = ("engine", "baseline", "variants")
"""Sections in which an address would be a server beside the stack."""


def addresses(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return ``metrics_url`` as a tuple, since a config may state one address or a list."""
    return (value,) if isinstance(value, str) else tuple(value)


def resolve_words(words: Iterable[Any], folder: Path) -> tuple[str, ...]:
    """Return the words of a command as texts, relative paths made absolute.

    Such a path begins with ``./`` or ``../``, and starts at the config's ``folder``.
    """
    return tuple(str((folder / word).absolute()) if word.startswith(("./", "../")) else word for word in map(str, words))


def read(entries: Iterable[Mapping[str, Any]], folder: Path) -> tuple[StackProcess, ...]:
    """Return the processes of a stack without :func:`problems`.

    Relative paths in commands start at ``folder``, the config's.
    """
    return tuple(
        StackProcess(
            name=entry["name"],
            command=resolve_words(entry.get("command", ()), folder),
            args=engines.mapping_of(entry.get("args")),
            env={name: str(value) for name, value in entry.get("env", {}).items()},
            ports=tuple(entry.get("ports", ())),
            ready=entry.get("ready", ""),
            is_asked=entry.get("asked", False),
            is_counted=entry.get("counted", False),
        )
        for entry in entries
    )


def port_names(stack: Iterable[StackProcess]) -> tuple[str, ...]:
    """Return the names of all ports of a stack, each once.

    Each process has a port under its own name, and maybe further ones.
    """
    return tuple(dict.fromkeys(name for process in stack for name in (process.name, *process.ports)))


def fill(value: JSON, values: Mapping[str, str], ports: Mapping[str, int]) -> JSON:
    """Return ``value`` with the placeholders in its texts replaced.

    ``values`` has by name the text for ``{host}`` and its like, ``ports`` the number for ``{port.NAME}``. A text that is nothing but the
    placeholder of a port becomes a number. A placeholder without a value stays.
    """
    if isinstance(value, Mapping):
        return {name: fill(item, values, ports) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [fill(item, values, ports) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACEHOLDER.fullmatch(value)
    if whole and whole[1] == _PORT and whole[2] in ports:
        return ports[whole[2]]
    return _PLACEHOLDER.sub(lambda match: _fill_match(match, values, ports), value)


def _fill_match(match: re.Match[str], values: Mapping[str, str], ports: Mapping[str, int]) -> str:
    """Return the text for a placeholder; the placeholder itself without one."""
    if match[2] is not None:
        return str(ports[match[2]]) if match[1] == _PORT and match[2] in ports else match[0]
    return values.get(match[1], match[0])


def placeholders(value: JSON) -> frozenset[str]:
    """Return the placeholders in the texts of ``value``, such as ``{host}`` and ``{port.proxy}``."""
    return frozenset(match[0] for _, text in _texts(value, ()) for match in _PLACEHOLDER.finditer(text))


def uses_port(name: str, *parts: JSON) -> bool:
    """Return True if the port of the process ``name`` stands in its ``parts``.

    The parts are its command, arguments and variables.
    """
    return f"{{{_PORT}.{name}}}" in placeholders(parts)


def problems(document: YamlDocument) -> Iterator[Problem]:
    """Yield the problems of ``stack`` and ``metrics_url`` that the JSON Schema cannot express.

    Those of ``metrics_url`` come first. Those of ``stack`` are looked for only if each of its processes is a mapping with a name.
    """
    data = document.data
    if not isinstance(data, Mapping):
        return
    entries = stated if isinstance(stated := data.get(STACK), list) else []
    stack = [entry for entry in entries if isinstance(entry, Mapping)]
    yield from _check_metrics(document, data, stack)
    if not stack or len(stack) < len(entries) or not all(isinstance(entry.get("name"), str) for entry in stack):
        return  # the schema says so
    yield from _check_names(document, stack)
    for at, entry in enumerate(stack):
        yield from _check_process(document, (STACK, at), entry)
    yield from _check_roles(document, stack)
    yield from _check_placeholders(document, data, stack)
    yield from _check_arms(document, data)


def _check_arms(document: YamlDocument, data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each port and address that an arm states beside ``stack``.

    The ports of a stack are free ones, chosen at its start. The address would be another server than the stack.
    """
    for path, section in _arm_sections(data):
        if any(name.strip("-") == _PORT for name in engines.mapping_of(section.get("args"))):
            hint = "{port.NAME} is the number of each process in the words of the others"
            yield validate.problem(document, (*path, "args", _PORT), "a port beside `stack`", "none: free ports are chosen", hint)
    for path in engines.list_addresses(data):
        if path[0] in _ADDRESSES:  # not of a draft model, which has a server of its own
            hint = "attach the server that is asked, with `metrics_url` for those that count; or start all here"
            yield validate.problem(document, path, "a server that runs already, beside `stack`", "processes that are started here", hint)


def _check_metrics(document: YamlDocument, data: Mapping[str, Any], stack: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a problem for each ``metrics_url`` in a wrong place.

    Such are addresses of counters beside a process with ``counted: true``, as only one of the two can say where they are read, and
    addresses for a server of one process that is started here, whose counters are read where requests go.
    """
    counted = [entry.get("name") for entry in stack if entry.get("counted")]
    places = [(*path, "metrics_url") for path, section in _arm_sections(data) if "metrics_url" in section]
    for place in places:
        if not stack and not _is_of_running_server(data, place[:-1]):
            hint = "add the `url` that is asked; or leave it out, since counters are read where requests go"
            yield validate.problem(
                document, place, "addresses of counters, and no `url` and no `stack`", "a server that runs already", hint
            )
        if counted:
            both = f"`metrics_url` beside `counted: true` of {counted[0]}"
            yield validate.problem(document, place, both, "one of the two")


def _is_of_running_server(data: Mapping[str, Any], path: KeyPath) -> bool:
    """Return True if the settings at ``path`` are of a server that runs already.

    ``path`` is the engine's, the baseline's or a variant's. An arm without an address has the engine's. The engine's settings hold for
    every arm, so that the address of any arm will do.
    """
    addressed_sections = {place[:-1] for place in engines.list_addresses(data)} - {("draft",)}
    if path == ("engine",):
        return bool(addressed_sections)
    return path in addressed_sections or ("engine",) in addressed_sections


def _arm_sections(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield the engine, the baseline and each variant with its place."""
    variants = data.get("variants")
    sections: dict[KeyPath, Any] = {(key,): data.get(key) for key in ("engine", "baseline")}
    sections |= {("variants", name): variant for name, variant in variants.items()} if isinstance(variants, Mapping) else {}
    yield from ((path, section) for path, section in sections.items() if isinstance(section, Mapping))


def _check_names(document: YamlDocument, stack: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a problem for each repeated name of a process or port."""
    seen: set[str] = set()
    for at, entry in enumerate(stack):
        names: list[tuple[KeyPath, str]] = [((STACK, at, "name"), entry["name"])]
        names += [((STACK, at, "ports", index), port) for index, port in enumerate(_words(entry.get("ports")))]
        for path, name in names:
            if name in seen:
                yield validate.problem(document, path, f"the name {name} twice", "a name of its own for each process and port")
            seen.add(name)


def _check_process(document: YamlDocument, path: KeyPath, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of one process alone.

    It must have either ``kind`` or ``command``, and state no port. A command must take the process's arguments, if there are any, and its
    port, if the process is asked or counted.
    """
    if ("command" in entry) is ("kind" in entry):
        keys = "both kind and command" if "kind" in entry else "neither kind nor command"
        yield validate.problem(document, path, keys, "`kind: engine`, which is the engine's own command, or `command`, word by word")
    if "args" in entry and "kind" not in entry and ARGS not in _words(entry.get("command")):
        hint = f"add the word {ARGS!r} to the command where they belong, or write them out"
        yield validate.problem(document, (*path, "args"), "arguments that the command does not take", f"a command with {ARGS}", hint)
    for name in engines.mapping_of(entry.get("args")):
        if name.strip("-") == _PORT:
            hint = f"{{port.{entry['name']}}} is its number in the words of the others"
            yield validate.problem(document, (*path, "args", name), "a port of your own", "none: free ports are chosen", hint)
    parts = (entry.get("command"), entry.get("args"), entry.get("env"))
    if (entry.get("asked") or entry.get("counted")) and "kind" not in entry and not uses_port(entry["name"], *parts):
        expected = f"{{port.{entry['name']}}} in its command or env, where it then listens"
        yield validate.problem(document, path, "a process that is asked or counted, and has no port", expected)


def _check_roles(document: YamlDocument, stack: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a problem for each of the two roles that is not filled.

    Exactly one process is asked, and at least one gets the arm's arguments.
    """
    asked_names = [entry["name"] for entry in stack if entry.get("asked") is True]
    if len(asked_names) != 1:
        count = f"{len(asked_names)} processes with `asked: true`" + (f" ({', '.join(asked_names)})" if asked_names else "")
        yield validate.problem(document, (STACK,), count, "one: requests are sent to it")
    if not any("kind" in entry or ARGS in _words(entry.get("command")) for entry in stack):
        expected = f"a process with `kind: engine`, or {ARGS} in a command"
        yield validate.problem(document, (STACK,), "no process that gets the arguments of an arm", expected)


def _check_placeholders(document: YamlDocument, data: Mapping[str, Any], stack: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a problem for each unknown or misplaced placeholder.

    They are looked for in the processes and in each ``metrics_url``. ``{args}`` must be a word of its own in a command.
    """
    names = port_names(StackProcess(name=entry["name"], ports=tuple(_words(entry.get("ports")))) for entry in stack)
    texts = [text for at, entry in enumerate(stack) for text in _texts(entry, (STACK, at))]
    texts += [text for path, section in _arm_sections(data) for text in _texts(section.get("metrics_url"), (*path, "metrics_url"))]
    for path, text in texts:
        for match in _PLACEHOLDER.finditer(text):
            kind, name = match[1], match[2]  # of {port.proxy}: port and proxy
            is_word_of_command = "command" in path and text == match[0]
            if kind == _PORT and name is not None:
                if name not in names:
                    expected = f"one of {', '.join(names)}, or a name under `ports`"
                    yield validate.problem(document, path, f"the port {name!r}", expected, validate.nearest(name, names))
            elif match[0] not in _WORDS:
                yield validate.problem(document, path, f"the placeholder {match[0]}", f"one of {', '.join(_WORDS)}")
            elif match[0] == ARGS and not is_word_of_command:
                yield validate.problem(document, path, f"{ARGS} inside of a text", f"{ARGS} as a word of its own in a command")


def _texts(value: JSON, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Yield each text in ``value`` with its place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, (*path, str(name)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _words(value: object) -> list[str]:
    """Return the texts of a list; empty for anything else, which the schema reports."""
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []

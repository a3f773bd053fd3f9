"""Strict YAML 1.2: ``on`` and ``no`` are strings, ``1e-3`` is a number, a key given twice is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import yaml

from pytest_specdec.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.model.workload import JSON

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands: keys and indices from the root."""

_CORE = (
    ("null", re.compile(r"~|null|Null|NULL|"), ("~", "n", "N", "")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE"), tuple("tTfF")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), tuple("-+0123456789")),
    (
        "float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        tuple("-+.0123456789"),
    ),
)
"""The core schema of YAML 1.2.2, section 10.3.2."""
_MOST_VALUES = 20_000
"""Most values of one file, each alias expanded; a config has a hundred."""
_DEEPEST = 50
"""Most levels of nested lists and mappings."""
_BREAKS = re.compile("[\x85\u2028\u2029\ufeff]")
_PLAIN = re.compile(r"[\w./~][\w./~@-]*", re.ASCII)
_BARE_VARIABLE = re.compile(r"\{[^\"'#\n]*\$\{\w+\}")
_PREFIX = "tag:yaml.org,2002:"


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """A parsed file that remembers where everything stood."""

    data: JSON
    source: str
    lines: Mapping[KeyPath, int]

    def line(self, path: KeyPath) -> int:
        """Return the line, from 1, of the key or item at ``path``.

        If the document has no such key, it is the line of the nearest key above it, or 1 without any.
        """
        for end in range(len(path), 0, -1):
            if path[:end] in self.lines:
                return self.lines[path[:end]]
        return 1


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


class _Dumper(yaml.SafeDumper):
    """Writes YAML, and quotes whatever 1.1 *or* 1.2 would not read as a string."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: list(resolvers) for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - PyYAML's signature
        super().increase_indent(flow, indentless=False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Return a text as a YAML node, quoted if it needs escapes.

    Unicode's own line breaks and byte order marks need them: unquoted, they would be lost, as line breaks are folded into spaces.
    """
    return dumper.represent_scalar(f"{_PREFIX}str", str(text), style='"' if _BREAKS.search(text) else None)


for _name, _pattern, _firsts in _CORE:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_PREFIX + _name, re.compile(f"(?:{_pattern.pattern})$"), list(_firsts))
_Dumper.add_representer(str, _represent_text)
_Dumper.add_multi_representer(str, _represent_text)
_Dumper.add_multi_representer(tuple, lambda dumper, items: dumper.represent_list(list(items)))
_Dumper.add_multi_representer(
    Mapping,  # type: ignore[type-abstract]  # isinstance is all that is done with it
    lambda dumper, data: dumper.represent_dict(dict(data)),
)


def load(text: str, source: str) -> YamlDocument:
    """Return the YAML document in ``text``, with its line numbers.

    ``source`` is the file's name for errors. Raises ConfigError, with file and line, if the text is no strict YAML, is several documents,
    or has too many values or levels.
    """
    reader = _Reader(source)
    try:
        node = yaml.compose(text, Loader=_Loader)
        data = None if node is None else reader.value(node, ())
    except RecursionError:
        msg = "lists and mappings nested without end"
        raise reader.error(msg, 1, f"at most {_DEEPEST} levels") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise reader.error(error.problem or "not YAML", line, remedy=_quoting_remedy(text, line)) from None
    except yaml.reader.ReaderError as error:
        what, line = f"a character that YAML does not allow: U+{int(error.character):04X}", text.count("\n", 0, error.position) + 1
        raise reader.error(what, line) from None
    return YamlDocument(data=data, source=source, lines=reader.lines)


def dump(data: JSON) -> str:
    """Return ``data`` as YAML, which :func:`load` reads back unchanged."""
    return yaml.dump(data, Dumper=_Dumper, default_flow_style=None, sort_keys=False, allow_unicode=True, width=140)


class _Reader:
    """Turns nodes into values and notes the lines of keys and items."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        # The lists and mappings around the node that is read, to refuse an alias to one of them, and too many levels.
        self._open_nodes: list[yaml.Node] = []
        # Values read so far, to refuse too many: aliases may multiply them.
        self._value_count = 0

    def error(self, what: str, line: int, expected: str = "YAML 1.2", remedy: str = "") -> ConfigError:
        return ConfigError("the file cannot be read", where=f"{self.source}:{line}", found=what, expected=expected, remedy=remedy)

    def value(self, node: yaml.Node, path: KeyPath) -> JSON:
        """Return a node's value, and record the lines of its keys and items.

        ``path`` is the place of the node. Raises ConfigError for too many values or levels, which a few aliases can make of a short file,
        and for an alias inside its own anchor.
        """
        if node in self._open_nodes:
            msg = "an alias inside its own anchor"
            raise self.error(msg, _line_of(node), "an alias outside its anchor")
        self._value_count += 1
        if self._value_count > _MOST_VALUES or len(self._open_nodes) >= _DEEPEST:
            msg = "aliases that multiply" if self._value_count > _MOST_VALUES else f"more than {_DEEPEST} levels of nesting"
            raise self.error(msg, _line_of(node), f"at most {_MOST_VALUES} values in at most {_DEEPEST} levels")
        self._open_nodes.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._read_mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self._read_item(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._read_scalar(node)
        finally:
            self._open_nodes.pop()

    def _read_item(self, node: yaml.Node, path: KeyPath) -> JSON:
        self.lines[path] = _line_of(node)
        return self.value(node, path)

    def _read_mapping(self, node: yaml.MappingNode, path: KeyPath) -> JSON:
        """Return a mapping node's value, and record its keys' lines.

        Raises ConfigError for a key that is a list or mapping, and for a repeated one.
        """
        mapping: dict[str, JSON] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                msg = "a list or mapping as a key"
                raise self.error(msg, _line_of(key), "a word as a key")
            if key.value in mapping:
                first_line = self.lines[(*path, key.value)]
                msg = f"the key {key.value!r} again, first on line {first_line}"
                raise self.error(msg, _line_of(key), "every key once")
            self.lines[(*path, key.value)] = _line_of(key)
            mapping[key.value] = self.value(value, (*path, key.value))
        return mapping

    def _read_scalar(self, node: yaml.Node) -> JSON:
        """Return a scalar node's value.

        Raises ConfigError for a tag of another type, and for a text that its tag does not allow.
        """
        kind, text = node.tag.removeprefix(_PREFIX), str(node.value)
        try:
            return _SCALARS[kind](text)
        except (KeyError, ValueError):
            msg = f"{text!r} with the tag {node.tag}"
            raise self.error(msg, _line_of(node), "a plain value") from None


def _quoting_remedy(text: str, line: int) -> str:
    """Return the remedy for an unquoted ``${VAR}`` inside of a mapping in braces.

    YAML takes the variable's own braces for a mapping there. Empty if there is none near ``line``.
    """
    context = "\n".join(text.split("\n")[max(0, line - 2) : line])
    return 'inside of { } put ${VAR} in quotes: "${VAR}"' if _BARE_VARIABLE.search(context) else ""


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _parse_integer(text: str) -> int:
    bases = {"0o": 8, "0x": 16}
    return int(text, bases.get(text[:2], 10))


def _parse_float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


_SCALARS: Mapping[str, Callable[[str], JSON]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": _parse_integer,
    "float": _parse_float,
    "str": str,
}


def scalar(text: str) -> str:
    """Return ``text`` as a YAML string, in quotes if needed.

    Quotes are needed if it would not be read as this string without.
    """
    is_plain = _PLAIN.fullmatch(text) and load(f"[{text}]", "").data == [text]
    return text if is_plain else json.dumps(text, ensure_ascii=False)

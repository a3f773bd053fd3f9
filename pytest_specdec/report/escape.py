"""Model output is hostile text: what is shown of it moves no cursor, breaks no line and turns no direction."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["escape", "printable", "shell_value"]

_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SPECIAL_IN_MARKDOWN = str.maketrans({**{c: "\\" + c for c in "\\`*_[]|~$"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"})


def printable(text: str) -> str:
    """Return ``text`` on one line, safe to print on any output.

    Control and format characters, line breaks included, are replaced by visible stand-ins.

    Commands to a CI runner are disarmed. GitHub's runner carries out ``##[group]`` anywhere in a line, so that it is broken up
    everywhere. It carries out ``::error`` only at the beginning of a line, after spaces at most, so that a bar is put before it.
    """
    line = text if text.isascii() and text.isprintable() else "".join(map(_replace_unprintable, text))
    line = line.replace("##[", "# #[")
    return f"| {line}" if line.lstrip().startswith("::") else line


def escape(text: str) -> str:
    """Return ``text`` escaped for GitHub-flavoured Markdown, table cells included.

    It is made :func:`printable` first.
    """
    return printable(text).translate(_SPECIAL_IN_MARKDOWN)


def _replace_unprintable(character: str) -> str:
    """Return ``character``, or a visible stand-in if it is unprintable."""
    code = ord(character)
    if code < 0x20:  # noqa: PLR2004 - the control pictures block mirrors C0
        return chr(0x2400 + code)
    if unicodedata.category(character) in _UNPRINTABLE:
        return f"\\u{code:04x}"
    return character


def shell_value(value: str) -> str:
    """Return a value in double quotes, in which a shell expands nothing but ``${VAR}``."""
    escaped = re.sub(r'([\\"`]|\$(?!\{\w+\}))', r"\\\1", value)
    return f'"{escaped}"'

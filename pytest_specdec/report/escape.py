"""Model output is hostile text: what is shown of it moves no cursor, breaks no line and turns no direction."""

from __future__ import annotations

import unicodedata

__all__ = ["escape", "printable"]

_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SPECIAL_IN_MARKDOWN = str.maketrans({**{c: "\\" + c for c in "\\`*_[]|~$"}, "<": "&lt;", ">": "&gt;", "&": "&amp;"})


def printable(text: str) -> str:
    """Return ``text`` on one line, without unprintable characters.

    Every character of a category in _UNPRINTABLE is replaced by a visible stand-in.

    Text that a CI runner would carry out as a command is disarmed. GitHub's runner takes ``##[group]`` anywhere in a
    line, so that it is broken up everywhere; ``::error`` only where a line begins, after spaces, so that a bar goes
    before it.
    """
    shown = text if text.isascii() and text.isprintable() else "".join(map(_visible, text))
    shown = shown.replace("##[", "# #[")
    return f"| {shown}" if shown.lstrip().startswith("::") else shown


def escape(text: str) -> str:
    """Return ``text`` escaped for GitHub-flavoured Markdown.

    It is :func:`printable`, and Markdown shows it as it stands, also in a table cell.
    """
    return printable(text).translate(_SPECIAL_IN_MARKDOWN)


def _visible(character: str) -> str:
    """Return a visible stand-in for an unprintable character."""
    code = ord(character)
    if code < 0x20:  # noqa: PLR2004 - the control pictures block mirrors C0
        return chr(0x2400 + code)
    if unicodedata.category(character) in _UNPRINTABLE:
        return f"\\u{code:04x}"
    return character

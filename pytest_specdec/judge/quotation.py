"""A quotation: model output inside a sentence, with what cannot be seen made visible."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(text: str, most: int = 40) -> str:
    r"""Return ``text`` in double quotes, cut to ``most`` characters, control and unprintable characters as ``\x01``."""
    shown = text if len(text) <= most else text[: most - 1] + "…"
    return '"' + "".join(map(_visible, shown)) + '"'


def _visible(character: str) -> str:
    if character == '"':
        return r"\""
    return character if character.isprintable() and character != "\\" else character.encode("unicode_escape").decode()

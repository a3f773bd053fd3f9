"""Secrets: values that must reach no artifact, in every encoding in which they may appear, and their masking."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_specdec.model.workload import JSON

_VARIABLE = re.compile(
    r"(?:(?:^|[-_.])(?:KEY|PASS|PAT|AUTH|AUTHORIZATION|BEARER)|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(?:_ID)?$",
    re.IGNORECASE,
)
"""Environment variables that hold secrets, by the last word of their name."""
_KEY = re.compile(
    r"(?:^|[-_.])(?:api[-_]?key|apikey|(?:access|private|secret|signing|auth|hf|hub)[-_](?:key|token)|secret|passw(?:or)?d|passphrase|"
    r"credentials?|pat|authorization|bearer)s?$",
    re.IGNORECASE,
)
"""Keys of a config's arguments that hold secrets; fewer than of variables, since engines have arguments like ``eos_token``."""
_LITERAL = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|AKIA[0-9A-Z]{16})\b"
    r"|authorization\W+(?:bearer|basic)\s+(?!\$\{)[^\s\"']+",
    re.IGNORECASE,
)
"""Values that are secrets in any place."""
HARMLESS_HEADERS = frozenset(
    {
        *("accept", "accept-language", "anthropic-version", "cache-control", "content-type", "http-referer", "openai-beta"),
        *("openai-organization", "openai-project", "origin", "pragma", "priority", "referer", "user-agent", "x-request-id", "x-title"),
    }
)
"""Headers that hold no secret, in lower case; any other one may be a gateway's key by whatever name."""
_SHORTEST = 6
"""Least characters of a value that no config names: ordinary text may hold a shorter word."""
_UNMASKED = frozenset({"schema", "arm", "workload", "digest", "request_id", "under", "state", "ending", "finish_reason", "doing", "route"})
"""Keys of this package's own files whose values are never masked (:meth:`Secrets.mask_json`)."""
_DECIMAL = 8
"""Least digits of a number that is masked: texts are full of shorter ones."""
_PIECE = 8
"""Least characters of a piece: what a cut leaves of a secret, whoever made it."""
_STEP = _PIECE // 2
"""Characters of a step in the search of a text: every piece holds this many that begin at a multiple of it."""
_DISTINCT = 4
"""Least distinct characters of a piece: rulers and runs of blanks have fewer."""
_SHORTEST_IN_BASE64 = 8
"""Least characters of a value that is searched for in base64: a shorter one leaves too few of its own."""


def is_secret(name: str, *, variable: bool = False) -> bool:
    """Return True if a name marks its value as a secret.

    ``name`` is a config's key or, with ``variable``, an environment variable's name. More variables than keys are
    secrets, since engines have arguments such as ``eos_token``.
    """
    return bool((_VARIABLE if variable else _KEY).search(name))


def is_literal(text: str) -> bool:
    """Return True if ``text`` contains a secret of a known form.

    The forms are access tokens of well-known services, and authorization headers, unless their value is a variable: ``${TOKEN}``.
    """
    return bool(_LITERAL.search(text))


def is_maskable(value: str) -> bool:
    """Return True if a value is long enough to mask everywhere.

    Shorter words and numbers occur in ordinary text, which masking would make unreadable.
    """
    return len(value) >= (_DECIMAL if value.isdecimal() else _SHORTEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Values that are masked in all that is written or printed."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, *environments: Mapping[str, str], also: Iterable[str | None] = ()) -> Secrets:
        """Return the secrets among environment variables, and all of ``also``.

        ``environments`` are mappings of variables to values. A value is a secret if its variable's name marks one (``HF_TOKEN``,
        ``MY_PAT``), unless it has fewer than 6 characters or only digits. Empty values and None in ``also`` are left out.
        """
        variable_values = {value for environment in environments for name, value in environment.items() if is_secret(name, variable=True)}
        values = {value for value in variable_values if len(value) >= _SHORTEST and not value.isdecimal()} | {
            value for value in also if value
        }
        return cls(values=tuple(sorted(values, key=len, reverse=True)))

    @classmethod
    def union(cls, several: Iterable[Secrets]) -> Secrets:
        """Return the secrets of all of ``several``."""
        return cls(values=tuple(sorted({value for one in several for value in one.values}, key=lambda value: (-len(value), value))))

    @property
    def spellings(self) -> tuple[str, ...]:
        """The secrets in every possible encoding, longest first.

        The encodings are those of JSON, shells, URLs, HTML, Python and base64; all but base64 may be applied twice.
        """
        return _spellings(self.values)

    def mask(self, text: str) -> str:
        """Return ``text`` with every secret replaced by ``***``.

        Every encoding of it is replaced, and every piece of 8 characters or more, since texts may be cut anywhere.
        """
        return _mask_pieces(_spellings_pattern(self.values).sub(_MASK, text), _pieces_of(self.values)) if self.values else text

    def excerpt(self, text: str, most: int) -> str:
        """Return the first ``most`` characters of ``text``, masked before the cut."""
        return self.mask(text)[:most]

    def mask_json(self, data: JSON) -> JSON:
        """Return ``data`` with the secrets in its strings masked.

        Data are masked before they become JSON text, so that no number loses digits. Values under keys of this package's own, such as names
        of arms and requests, are not masked: the file could not be read back if a secret were such a word. Keys are not masked either.
        """
        return _mask_strings(data, self) if self.values else data

    def __repr__(self) -> str:
        return f"<Secrets: {len(self.values)} values>"


def _mask_strings(data: JSON, secrets: Secrets) -> JSON:
    """Return ``data`` with secrets masked in its strings, at any depth.

    All keys stay, and so do the values under :data:`_UNMASKED`, names that this package needs to read its own files back.
    """
    if isinstance(data, str):
        return secrets.mask(data)
    if isinstance(data, Mapping):
        return {name: value if name in _UNMASKED else _mask_strings(value, secrets) for name, value in data.items()}
    return [_mask_strings(value, secrets) for value in data] if isinstance(data, list) else data


_MASK = "***"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """Runs of characters by which pieces of secrets, what a cut leaves of them, are recognised."""

    whole: frozenset[str]
    """Every run of 8 characters."""
    parts: frozenset[str]
    """Every run of 4 within them: a text is looked through in steps of 4."""


@cache
def _pieces_of(values: tuple[str, ...]) -> _Pieces:
    """Return all runs of 8 characters of the secrets, in every encoding.

    Runs of fewer than 4 distinct characters, such as blanks or rulers, are left out, since ordinary text has them. Each comes with its
    five parts of 4 characters: the search looks at every fourth place of a text only, and any of the five may begin there.
    """
    texts = _spellings(values)
    runs = {text[start : start + _PIECE] for text in texts for start in range(len(text) - _PIECE + 1)}
    whole = frozenset(run for run in runs if len(set(run)) >= _DISTINCT)
    return _Pieces(whole=whole, parts=frozenset(run[start : start + _STEP] for run in whole for start in range(_STEP + 1)))


def _mask_pieces(text: str, pieces: _Pieces) -> str:
    """Return ``text`` with every piece of a secret masked.

    A piece is a run of 8 or more characters of a secret.
    """
    masked, end = [], 0
    for start, stop in _piece_spans(text, pieces):  # from left to right, without overlap
        masked += [text[end:start], _MASK]
        end = stop
    return "".join([*masked, text[end:]])


def _piece_spans(text: str, pieces: _Pieces) -> Iterator[tuple[int, int]]:
    """Yield start and end of each piece of a secret in ``text``.

    The text is searched in steps of 4 characters, since every run of 8 contains 4 characters that begin at a multiple of 4. If these are
    part of a secret, the runs of 8 around them are compared. Pieces that overlap or touch count as one.
    """
    span_start = span_end = -1  # no span is open
    for place in range(0, len(text) - _STEP + 1, _STEP):
        if text[place : place + _STEP] not in pieces.parts:
            continue
        for start in range(max(0, place - _STEP), place + 1):
            if text[start : start + _PIECE] in pieces.whole:
                if span_start >= 0 and start > span_end:
                    yield span_start, span_end
                    span_start = -1
                span_start, span_end = (start if span_start < 0 else span_start), start + _PIECE
    if span_start >= 0:
        yield span_start, span_end


@cache
def _spellings_pattern(values: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, _spellings(values))))


@cache
def _spellings(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values in every encoding, the longest first.

    In this order a longer one is masked before a part of it is. Encodings are applied up to twice, as for JSON within JSON.
    """
    # _encodings yields its argument too, so that these have the values themselves, and the second set has all of the first.
    encoded_up_to_once = {text for value in values for text in _encodings(value)}
    encoded_up_to_twice = {text for spelling in encoded_up_to_once for text in _encodings(spelling)}
    # The base64 digits of a shorter value are so few that ordinary text may hold them.
    long_values = [value for value in values if len(value) >= _SHORTEST_IN_BASE64]
    base64_texts = {text for value in long_values for text in _base64_spellings(value)}
    return tuple(sorted(encoded_up_to_twice | base64_texts, key=len, reverse=True))


def _encodings(value: str) -> Iterator[str]:
    """Yield ``value`` as it is and as common formats encode it.

    The formats are JSON, URLs, HTML, Python and shells.
    """
    yield value
    yield from (json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value).replace("/", "\\/")[1:-1])
    yield from (quote(value, safe=""), quote(value), quote_plus(value), html.escape(value), repr(value)[1:-1])
    yield shlex.quote(value)
    yield value.replace("'", "'\"'\"'")  # as shlex.quote does, within a longer quoted text


def _base64_spellings(text: str) -> Iterator[str]:
    """Yield the base64 digits of ``text`` at each possible offset.

    Base64 encodes three bytes as four digits, so that the digits depend on the place of ``text`` in a longer one. Digits at both ends that
    also depend on neighbouring bytes are left out. Both alphabets are used, the standard and the URL-safe one.
    """
    value = text.encode(errors="surrogateescape")
    for offset in range(3):
        # Six bits a digit: the digits at both ends depend on neighbouring bytes too.
        start, end = (offset * 8 + 5) // 6, ((offset + len(value)) * 8) // 6
        own_digits = slice(start, end)
        data = b"\0" * offset + value
        yield base64.b64encode(data).decode()[own_digits]
        yield base64.urlsafe_b64encode(data).decode()[own_digits]

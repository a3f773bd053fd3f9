"""A grammar: which tokens may come next, for every position of a draft too, through llguidance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pytest_specdec.model.grammar import GrammarKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions
    from numpy.typing import NDArray

    from pytest_specdec.model.workload import JSON

_ANY_OBJECT: Mapping[str, JSON] = {"type": "object"}
LAYOUT: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As ``json.dumps`` writes: a small model that may put white space anywhere puts nothing else for long stretches."""


class Grammar(Protocol):
    """The position of one sequence in its grammar."""

    def mask(self) -> NDArray[np.bool_]:
        """Return the mask of permitted next tokens, (vocabulary,)."""

    def advance(self, token: int) -> None:
        """Take one token."""

    def retreat(self, count: int) -> None:
        """Take back the last ``count`` tokens."""

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the longest permitted prefix of ``tokens``."""


class Grammars:
    """The grammars over one vocabulary. llguidance is imported with the first one: most servers never need one."""

    def __init__(self, tokenizer_file: Path, eos_ids: tuple[int, ...]) -> None:
        from llguidance import LLTokenizer  # noqa: PLC0415 - 60 ms of boot that most servers do not need

        self.eos_ids = eos_ids
        self._tokenizer = LLTokenizer(tokenizer_file.read_text("utf-8"), eos_token=list(eos_ids))

    def compile(self, kind: GrammarKind, specification: JSON) -> str:
        """Return a grammar as llguidance's text, checked to compile.

        ``specification`` is a JSON Schema, a regular expression or the like, by ``kind``. Raises ValueError where llguidance cannot
        compile it.
        """
        from llguidance import LLMatcher  # noqa: PLC0415 - as above

        grammar = _grammar_text(kind, specification)
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, self._tokenizer)
        if failed:
            raise ValueError("; ".join(messages))
        return grammar

    def start(self, grammar: str) -> GrammarMatcher:
        """Return the state of a new sequence in a grammar of :meth:`compile`."""
        from llguidance import LLMatcher  # noqa: PLC0415 - as above

        return GrammarMatcher(LLMatcher(self._tokenizer, grammar), self._tokenizer.vocab_size)


def _grammar_text(kind: GrammarKind, specification: JSON) -> str:
    """Return a specification as llguidance writes grammars; JSON gets a fixed layout."""
    from llguidance import LLMatcher, grammar_from  # noqa: PLC0415 - as above

    if kind in {GrammarKind.JSON, GrammarKind.JSON_OBJECT}:
        schema = specification if kind is GrammarKind.JSON else _ANY_OBJECT
        return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=LAYOUT))
    text = specification if isinstance(specification, str) else json.dumps(specification)
    return str(grammar_from(kind.value, text))  # type: ignore[arg-type]  # its names are a Literal of the same


class GrammarMatcher:
    """The position of one sequence in its grammar; steps ahead are taken back with :meth:`retreat`.

    llguidance refuses tokens after the grammar's end, so these are only counted, in ``_beyond``.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: int) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._beyond = 0
        """Tokens taken after the end: llguidance refuses them, and drafts there are cut anyway."""

    def mask(self) -> NDArray[np.bool_]:
        """Return the mask of permitted next tokens, (vocabulary,).

        After the end only the end-of-sequence token is permitted.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little", count=self._vocabulary).view(np.bool_)

    def advance(self, token: int) -> None:
        """Take one token permitted by :meth:`mask`.

        Raises ValueError for any other. After the end every token is taken and only counted.
        """
        if self._beyond or self._matcher.is_stopped():
            self._beyond += 1
        elif not self._matcher.consume_token(token):
            raise ValueError(self._matcher.get_error())

    def retreat(self, count: int) -> None:
        """Take back the last ``count`` tokens."""
        beyond = min(count, self._beyond)  # the matcher has not seen these
        self._beyond -= beyond
        if count > beyond:
            self._matcher.rollback(count - beyond)

    def allowed_prefix(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """Return the longest permitted prefix of ``tokens``."""
        return () if self._beyond else tokens[: self._matcher.validate_tokens(list(tokens))]


def walk(grammar: Grammar, tokens: Sequence[int]) -> NDArray[np.bool_]:
    """Return the masks at each of some draft tokens and after the last.

    Their shape is (len(tokens) + 1, vocabulary). The grammar is back at its position afterwards. It has to permit all ``tokens``.
    """
    masks = []
    for token in tokens:
        masks.append(grammar.mask())
        grammar.advance(token)
    masks.append(grammar.mask())
    grammar.retreat(len(tokens))
    return np.array(masks)

"""An open prompt: a length that stands in a request's body until a prompt of that length is put in its place.

Plans and workloads are stored with it, as the body's ``prompt``: a number, or a mapping whose keys show its kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON, Request

__all__ = ["BelowLimit", "LimitShare", "OpenPrompt", "TextLength", "TokenCount", "read_open_prompt"]

_TOKENS, _BELOW, _SHARE, _ENDING = "tokens", "below_limit", "of_limit", "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """A prompt of a number of token ids."""

    tokens: int

    @property
    def as_json(self) -> JSON:
        """The number."""
        return self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowLimit:
    """A prompt of token ids that ends at a distance from the context limit."""

    tokens: int
    """The distance: as many as the answer, and more if the answer is to end before the limit, fewer if beyond it."""

    @property
    def as_json(self) -> JSON:
        """The mapping with the distance."""
        return {_BELOW: self.tokens}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitShare:
    """A text that fills a share of the context limit together with its answer."""

    share: float
    """0..1."""
    ending: str
    """The kind of the text's ending: a value of ``Kind`` in prompts/long.py."""

    @property
    def as_json(self) -> JSON:
        """The mapping with share and ending."""
        return {_SHARE: self.share, _ENDING: self.ending}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLength:
    """A text of a number of tokens, not tokenized yet."""

    tokens: int
    ending: str
    """The kind of the text's ending: a value of ``Kind`` in prompts/long.py."""

    @property
    def as_json(self) -> JSON:
        """The mapping with number and ending."""
        return {_TOKENS: self.tokens, _ENDING: self.ending}


OpenPrompt: TypeAlias = TokenCount | BelowLimit | LimitShare | TextLength


def read_open_prompt(request: Request) -> OpenPrompt | None:
    """Return the open prompt of a request.

    None if its prompt is put in already, or if its body has messages instead.
    """
    prompt = request.body.get("prompt")
    if isinstance(prompt, int):
        return TokenCount(tokens=prompt)
    if not isinstance(prompt, Mapping):
        return None
    if _TOKENS in prompt:
        return TextLength(tokens=_require_int(prompt[_TOKENS]), ending=str(prompt[_ENDING]))
    if _SHARE in prompt:
        share = prompt[_SHARE]
        assert isinstance(share, float)
        return LimitShare(share=share, ending=str(prompt[_ENDING]))
    return BelowLimit(tokens=_require_int(prompt[_BELOW]))


def _require_int(value: JSON) -> int:
    assert isinstance(value, int)
    return value

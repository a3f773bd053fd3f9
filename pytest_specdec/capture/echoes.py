"""Echoes: the log-probabilities of a prompt that a completions answer begins with, apart from those of the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.capture.fields import finite_numbers

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """An echoed prompt."""

    logprobs: tuple[float, ...] | None
    """Natural-log probabilities of its tokens from the second on; None if one of them is no finite number."""
    answer_lists: Mapping[str, JSON]
    """The lists of the choice without the prompt's entries."""


def read(choice: Mapping[str, JSON], prompt_tokens: int) -> Echo | None:
    """Return the prompt's log-probabilities echoed in a choice, split off.

    With an echo, the lists of the choice's ``logprobs`` (``_LISTS``, one entry per token) begin with the prompt's tokens. Returns None
    without one: an echo's ``token_logprobs`` begins with null, since only the first token of a prompt has no log-probability.

    As many entries are taken for the prompt as it has tokens (``prompt_tokens``), even if the server echoed another number: the error
    then shows in the lists of the answer.
    """
    lists = choice.get("logprobs")
    values = lists.get("token_logprobs") if isinstance(lists, Mapping) else None
    if not isinstance(lists, Mapping) or not isinstance(values, list) or not values or values[0] is not None or not prompt_tokens:
        return None
    answer_lists = {
        name: entries[prompt_tokens:] if name in _LISTS and isinstance(entries, list) else entries for name, entries in lists.items()
    }
    return Echo(logprobs=finite_numbers(values[1:prompt_tokens]), answer_lists=answer_lists)

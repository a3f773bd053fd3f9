"""Dated prompts: prompts of two runs that differ in a few token ids, and whether a date in the chat template explains that.

A date stands in the header that the template writes, so that all chats with that header have it, and with the same other ids. A token of
the template, such as the end of a turn, stands after what the user wrote as well: every chat has other ids before it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["MOST_IDS", "ChangedPrompts", "sort"]

MOST_IDS = 4
"""Token ids in which two prompts of one length may differ by a date."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPrompts:
    """The prompts with other token ids in the new run, by what explains them."""

    other: tuple[str, ...] = ()
    """No date does: another length, too many other ids, no chat, or a token that is replaced wherever it stands."""
    few: tuple[str, ...] = ()
    """Chats of the same length with a few other ids."""
    undated: tuple[str, ...] = ()
    """Of the chats in ``few``, those for which no date in the template's header explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """The token ids that differ between two prompts of one length."""

    header: tuple[int, ...]
    """The old ids up to the last one that differs."""
    start: int
    """The number of ids before the first one that differs."""
    replacements: tuple[tuple[int, int], ...]
    """The old and the new id, place by place."""

    @property
    def recurs(self) -> bool:
        """True if one id is replaced by the same other one at several places."""
        return len(set(self.replacements)) < len(self.replacements)


def sort(shared: Mapping[str, tuple[Sequence[int], Sequence[int]]], chats: Collection[str], *, days: int = 1) -> ChangedPrompts:
    """Return the prompts with other ids, sorted by what explains them.

    ``shared`` has the old and the new token ids by prompt, and ``chats`` the prompts that a chat template made. A date stands in a header
    that at least half of the chats with a few other ids have in common, with the same replacements; these it explains in the other chats
    too. A single such chat is dated if another chat has the same ids before its date. No chat keeps its ids after a dated header. Runs that
    go over midnight have several pairs of an old and a new day, ``days`` in number, and as many replacements, or none, in one header.
    """
    changed = {prompt: ids for prompt, ids in shared.items() if tuple(ids[0]) != tuple(ids[1])}
    of_chats = {prompt: _find_edit(*ids) for prompt, ids in changed.items() if prompt in chats}
    edits = {prompt: edit for prompt, edit in of_chats.items() if edit is not None}
    unchanged = [tuple(before) for prompt, (before, _) in shared.items() if prompt not in changed and prompt in chats]
    dates = set(_find_dates(list(edits.values()), unchanged, days))
    undated = {prompt: edit for prompt, edit in edits.items() if edit.replacements not in dates}
    tokens = {prompt for prompt, edit in undated.items() if edit.recurs}
    return ChangedPrompts(
        other=tuple(prompt for prompt in changed if prompt not in edits or prompt in tokens),
        few=tuple(prompt for prompt in edits if prompt not in tokens),
        undated=tuple(prompt for prompt in undated if prompt not in tokens),
    )


def _find_edit(before: Sequence[int], after: Sequence[int]) -> _Edit | None:
    """Return what differs between two prompts; None if more than a date may."""
    if len(before) != len(after):
        return None
    places = [place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    if len(places) > MOST_IDS:
        return None
    replacements = tuple((before[place], after[place]) for place in places)
    return _Edit(header=tuple(before[: places[-1] + 1]), start=places[0], replacements=replacements)


def _find_dates(edits: Sequence[_Edit], unchanged: Sequence[tuple[int, ...]], days: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the replacements that a date in a header may have made.

    ``unchanged`` are the ids of the chats without other ones.
    """
    groups = Counter(edits)
    for edit, size in groups.items():
        header = edit.header
        # In how many ways the new run writes this header: one for each pair of days, or it is no date.
        versions = sum(other.header == header for other in groups) + any(ids[: len(header)] == header for ids in unchanged)
        is_common = 2 * days * size >= len(edits) if size > 1 else len(edits) == 1 and _begins_another(header[: edit.start], unchanged)
        if is_common and versions <= days:
            yield edit.replacements


def _begins_another(ids: tuple[int, ...], chats: Sequence[tuple[int, ...]]) -> bool:
    """Return True if another chat begins with ``ids``, or if there is none."""
    return not chats or any(chat[: len(ids)] == ids for chat in chats)

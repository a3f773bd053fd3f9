"""Dated prompts: prompts of two runs that differ in a few token ids, and whether a date in the chat template explains that.

A prompt's edit is what differs between its old and its new token ids: replacements of old ids by new ones. Its header is the old ids up to
the last that differs. A date stands in the header that the template writes, so that all chats with that header have the same edit. A token
of the template, such as the end of a turn, stands after what the user wrote as well: every chat has other ids before it.

A tokenizer that writes each digit by itself changes up to six stretches of ids where a header has two dates, and may need an id more. Such
a change counts as few ids where chats share the header, of two days. Ids where none were are no date: a token that the template adds, as
a second beginning of the prompt, looks like a day of one digit that becomes one of two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

__all__ = ["MOST_IDS", "ChangedPrompts", "classify"]

MOST_IDS = 4
"""Token ids in which two prompts of one length may differ by a date, in whatever header."""
_MOST_STRETCHES = 6
"""Stretches of ids that two dates may change in a header that chats share: year, month and day of each."""
_LONGEST = 3
"""Ids of such a stretch."""
_MOST_MORE = 2
"""Ids by which a prompt may become longer or shorter by dates."""
_WIDEST = 64
"""Ids from the first that differs to the last, in such a prompt."""
_Replacement: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedPrompts:
    """The prompts with other token ids in the new run, by what explains them."""

    other: tuple[str, ...] = ()
    """No date does: too many other ids, no chat, or a token that is replaced wherever it stands."""
    few: tuple[str, ...] = ()
    """Chats with a few other ids."""
    undated: tuple[str, ...] = ()
    """Of the chats in ``few``, those for which no date in the template's header explains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edit:
    """The token ids that differ between two prompts."""

    header: tuple[int, ...]
    """The old ids up to the last one that differs."""
    start: int
    """The number of ids before the first one that differs."""
    replacements: tuple[_Replacement, ...]
    """The old and the new ids, place by place; of prompts of two lengths, stretch by stretch."""
    is_long: bool
    """Whether more than :data:`MOST_IDS` ids differ, or the lengths of the prompts."""

    @property
    def recurs(self) -> bool:
        """True if one id is replaced by the same other one at several places."""
        return len(set(self.replacements)) < len(self.replacements)


def classify(
    shared: Mapping[str, tuple[Sequence[int], Sequence[int]]], chats: Collection[str], *, days: int = 1, is_one_day: bool = False
) -> ChangedPrompts:
    """Return the prompts with other ids, grouped by what explains them.

    ``shared`` has the old and the new token ids by prompt, and ``chats`` the prompts that a chat template made. ``days`` is the number of
    pairs of an old and a new day, several if a run goes over midnight; ``is_one_day`` says that both runs are of one day.

    """
    changed = {prompt: ids for prompt, ids in shared.items() if tuple(ids[0]) != tuple(ids[1])}
    unchanged = [tuple(before) for prompt, (before, _) in shared.items() if prompt not in changed and prompt in chats]
    edits = _select_edits({prompt: ids for prompt, ids in changed.items() if prompt in chats}, is_one_day=is_one_day)
    # A date explains the same replacements in every chat, after whatever header.
    made_by_date = set(_find_dates(list(edits.values()), unchanged, days))
    undated = {prompt: edit for prompt, edit in edits.items() if edit.replacements not in made_by_date}
    # Without a date, an id that becomes the same other one at several places is a token that is replaced wherever it stands.
    recurring = {prompt for prompt, edit in undated.items() if edit.recurs}
    return ChangedPrompts(
        other=tuple(prompt for prompt in changed if prompt not in edits or prompt in recurring),
        few=tuple(prompt for prompt in edits if prompt not in recurring),
        undated=tuple(prompt for prompt in undated if prompt not in recurring),
    )


def _select_edits(changed: Mapping[str, tuple[Sequence[int], Sequence[int]]], *, is_one_day: bool) -> dict[str, _Edit]:
    """Return the edits of the changed chats with a few other ids, by prompt.

    A long edit, of more than :data:`MOST_IDS` ids or of prompts of two lengths, counts as few ids only if a date is likely to have made it.
    """
    of_chats = {prompt: _find_edit(*ids) for prompt, ids in changed.items()}
    # In two runs of one day no date changes.
    edits = {prompt: edit for prompt, edit in of_chats.items() if edit is not None and not (edit.is_long and is_one_day)}
    # A date stands in a header of the template, which other chats share.
    chats_by_header = Counter(edit.header for edit in edits.values())
    return {prompt: edit for prompt, edit in edits.items() if not edit.is_long or chats_by_header[edit.header] > 1}


def _find_edit(before: Sequence[int], after: Sequence[int]) -> _Edit | None:
    """Return the ids that differ; None if they are more than dates may change.

    ``before`` and ``after`` are a prompt's old and new token ids, which must not be equal. Up to :data:`MOST_IDS` ids count as few wherever
    they stand. More make a long edit, which must look like dates.
    """
    if len(before) != len(after):
        return _find_longer_edit(before, after)
    places = [place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    is_long = len(places) > MOST_IDS
    if is_long and not _may_be_dates(_measure_stretches(places)):
        return None
    replacements = tuple(((before[place],), (after[place],)) for place in places)
    return _Edit(header=tuple(before[: places[-1] + 1]), start=places[0], replacements=replacements, is_long=is_long)


def _measure_stretches(places: Sequence[int]) -> Collection[int]:
    """Return the length of each stretch, rising places in a row."""
    # A place less its number in ``places`` is the same along a stretch, and another one in the next: counts of equal ones are lengths.
    return Counter(place - number for number, place in enumerate(places)).values()


def _find_longer_edit(before: Sequence[int], after: Sequence[int]) -> _Edit | None:
    """Return the ids that differ between prompts of two lengths.

    A date may change the length: the id of a 9 becomes the two of a 10. None if no date makes such an edit. Every edit of two lengths
    counts as long, since a token that the template adds is one as well.
    """
    start = first_difference(before, after)
    alike_at_end = first_difference(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - alike_at_end], after[start : len(after) - alike_at_end]
    # From the first id that differs to the last: dates add few ids, and stand close together.
    if abs(len(old) - len(new)) > _MOST_MORE or len(old) > _WIDEST:
        return None
    operations = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()  # each turns old[i:j] into new[k:m]
    replacements = tuple((tuple(old[i:j]), tuple(new[k:m])) for tag, i, j, k, m in operations if tag != "equal")
    lengths = [max(map(len, replacement)) for replacement in replacements]
    # A date replaces ids: none come where none were, and none go without others in their place.
    are_all_replaced = all(ids and others for ids, others in replacements)
    if not are_all_replaced or not _may_be_dates(lengths):
        return None
    return _Edit(header=tuple(before[: start + len(old)]), start=start, replacements=replacements, is_long=True)


def _may_be_dates(lengths: Collection[int]) -> bool:
    """Return True if stretches of other ids are no more and no longer than those of two dates."""
    return len(lengths) <= _MOST_STRETCHES and max(lengths, default=0) <= _LONGEST


def _find_dates(edits: Sequence[_Edit], unchanged: Sequence[tuple[int, ...]], days: int) -> Iterator[tuple[_Replacement, ...]]:
    """Yield the replacements that a date in the template may have made.

    ``edits`` are those of the changed chats, and ``unchanged`` the ids of the other chats. ``days`` is the number of pairs of an old and a
    new day, several if a run goes over midnight. A date makes one edit in all chats of one pair of days.
    """
    chats_by_edit = Counter(edits)
    for edit, chats in chats_by_edit.items():
        if chats > 1:
            # Chats need not fall evenly on the pairs of days: half of an even share is enough.
            even_share = len(edits) / days
            is_of_template = chats >= even_share / 2
        else:
            # No other chat repeats this edit. It counts if no other chat changed at all, and if the ids before it are the template's: the
            # unchanged chats, if there are any, begin with them.
            is_of_template = len(edits) == 1 and _begins_another(edit.header[: edit.start], unchanged)
        # The new run writes a header in one way for each pair of days; in more ways, it is no date.
        stays_somewhere = any(ids[: len(edit.header)] == edit.header for ids in unchanged)
        ways = sum(other.header == edit.header for other in chats_by_edit) + stays_somewhere
        if is_of_template and ways <= days:
            yield edit.replacements


def _begins_another(ids: tuple[int, ...], chats: Sequence[tuple[int, ...]]) -> bool:
    """Return True if one of ``chats`` begins with ``ids``, or if there is none."""
    return not chats or any(chat[: len(ids)] == ids for chat in chats)

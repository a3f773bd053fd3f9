"""Baseline endings: how the baseline's own answers end, as a measure for the ends of the judged arm's.

The ids that end a sequence are learned from answers of the baseline and the control, its second boot. They are answers to plain requests,
without stops and without a grammar, that stopped: three different answers stop with such an id, and none goes on after it. An engine that
stops at ids which also stand inside answers leaves its end of sequence out of them: it hides the end, and no id counts as one. Documents,
the answers under a grammar, teach no such id, since a bracket may end all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.answer_end import EndKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.judge.answer_end import AnswerEnd

__all__ = ["BaselineEndings", "learn_endings"]

_ENOUGH_STOPS = 3
"""Different answers that must stop with an id before it counts as an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineEndings:
    """Endings of the baseline's own answers, as a measure for the variant's.

    ``hides_end`` says of each kind of requests whether the ids of some stopped answer lack the end of sequence. ``shows_end`` are the kinds
    of which all answers end with it. ``context`` is the length, in tokens, of a full context as the baseline's answers show it.
    """

    ordinary: frozenset[int]
    """Ids after which answers go on, which are no ends of sequence."""
    eos_ids: frozenset[int]
    """Ids that end a sequence, as the answers show; empty if they show none."""
    hides_end: Mapping[EndKind, bool]
    """By kind, whether some answer stops without an end of sequence among its ids; a kind without a stopped answer is missing, as is STOPS,
    since a stop may fall at any id."""
    shows_end: frozenset[EndKind]
    """Kinds of requests with stopped answers enough to show that the ids of all of them end with an end of sequence."""
    context: int | None
    """The fewest tokens, prompt and answer together, at which an answer ended for length below its own limit; None without such."""
    gives_ids: bool
    miscounts: Mapping[tuple[str, EndKind], frozenset[int]]
    """By finish reason and kind, the numbers of tokens by which usage exceeds the ids; empty if the server does not give both."""
    leeway: int
    """Tokens that a speculating server may leave free at the end of the context."""

    def hides(self, kind: EndKind) -> bool:
        """Return True if an answer of ``kind`` may end without its ids showing it.

        A kind without a stopped answer counts as plain answers do; False if none of these stopped either.
        """
        return self.hides_end.get(kind, self.hides_end.get(EndKind.PLAIN, False))

    def shows(self, kind: EndKind) -> bool:
        """Return True if the ids of answers of ``kind`` show their ends.

        A kind without a stopped answer counts as plain answers do.
        """
        return (kind if kind in self.hides_end else EndKind.PLAIN) in self.shows_end

    def fills(self, end: AnswerEnd) -> bool:
        """Return True if ``end`` is no further than ``leeway`` from the end of the context."""
        return self.context is not None and end.context >= self.context - self.leeway


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stops:
    """The stopped answers to one kind of requests, by their last ids."""

    last_ids: Mapping[int, int]
    """The number of different answers that stop with each id."""
    hides_end: bool
    """Whether one of them stops with an id after which other answers go on."""

    @property
    def usual_last_ids(self) -> frozenset[int]:
        """The ids with which enough different answers stop."""
        return frozenset(token for token, count in self.last_ids.items() if count >= _ENOUGH_STOPS)


def learn_endings(peers: Sequence[AnswerEnd], *, leeway: int = 0) -> BaselineEndings:
    """Return the facts about endings shown by the baseline's answers.

    ``peers`` are the ends of these answers. An answer that stopped shows its end if its last id is one that ends a sequence. It hides its
    end if other answers go on after that id: the engine has then left the end of sequence out. ``leeway`` is the number of tokens that the
    judged arm may leave free at the end of the context.
    """
    # An answer goes on after each of its ids but the last. Under ignore_eos, and before min_tokens (``least``), it does so after an end of
    # sequence too.
    ordinary = frozenset(token for end in peers if not end.limits.ignores_eos for token in end.ids[end.limits.least : -1])
    stops = _group_stops(peers, ordinary)
    plain, documents = stops.get(EndKind.PLAIN), stops.get(EndKind.GRAMMAR)
    # An id with which enough different plain answers stop, and after which none goes on, ends a sequence.
    eos_ids = frozenset[int]() if plain is None or plain.hides_end else plain.usual_last_ids
    shows_end = {EndKind.PLAIN} if eos_ids else set[EndKind]()
    # A document may also end with an id that usually ends documents, such as a bracket.
    if documents is not None and not documents.hides_end and documents.last_ids.keys() <= eos_ids | documents.usual_last_ids:
        shows_end.add(EndKind.GRAMMAR)
    # An answer that ends for length below its own limit has met the end of the context.
    context = min((end.context for end in peers if end.below_limit), default=None)
    return BaselineEndings(
        ordinary=ordinary,
        eos_ids=eos_ids,
        hides_end={kind: of_kind.hides_end for kind, of_kind in stops.items()},
        shows_end=frozenset(shows_end),
        context=context,
        gives_ids=any(end.ids for end in peers),
        miscounts=_miscounts(peers),
        leeway=leeway,
    )


def _group_stops(peers: Sequence[AnswerEnd], ordinary: frozenset[int]) -> dict[EndKind, _Stops]:
    """Return the stopped answers with ids, by kind of their requests.

    Requests with stops are left out, since a stop may fall at any id, and so are those that ignore ends of sequence. ``ordinary`` are the
    ids after which answers go on: an answer that stops with one hides its end of sequence. Equal answers are counted once.
    """
    ids_by_kind: dict[EndKind, set[tuple[int, ...]]] = {}
    for end in peers:
        if end.choice.finish_reason == "stop" and end.ids and not end.limits.ignores_eos and end.limits.kind is not EndKind.STOPS:
            ids_by_kind.setdefault(end.limits.kind, set()).add(end.ids)
    return {
        kind: _Stops(last_ids=Counter(ids[-1] for ids in answers), hides_end=any(ids[-1] in ordinary for ids in answers))
        for kind, answers in ids_by_kind.items()
    }


def _miscounts(peers: Sequence[AnswerEnd]) -> dict[tuple[str, EndKind], frozenset[int]]:
    """Return the numbers of tokens by which usage exceeds the ids.

    They are those of the baseline's answers with one choice, by finish reason and kind of request. Some servers count a hidden end of
    sequence, so that the number need not be 0.
    """
    excesses: dict[tuple[str, EndKind], frozenset[int]] = {}
    for end in peers:
        excess = end.excess_tokens
        if len(end.answer.choices) == 1 and end.ids and excess is not None:
            key = (str(end.choice.finish_reason), end.limits.kind)
            excesses[key] = excesses.get(key, frozenset()) | {excess}
    return excesses

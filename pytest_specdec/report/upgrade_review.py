"""The changes of an upgrade that a config accepts by name, and the acceptances that no longer hold or are not needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.baseline_change import ChangeKind
from pytest_specdec.judge.compared_speed import SlowPart
from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from datetime import date

    from pytest_specdec.judge.baseline_change import BaselineChange
    from pytest_specdec.judge.compared_speed import ComparedSpeed
    from pytest_specdec.model.upgrade_gates import AcceptedChange
    from pytest_specdec.report.capability_change import CapabilityChange

__all__ = ["Review", "list_names", "list_unknown", "name", "name_slow", "review"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What became of the acceptances of a config."""

    accepted: tuple[AcceptedChange, ...] = ()
    """Those that speak of a change of this upgrade, and have not expired."""
    lines: tuple[str, ...] = ()
    """A line per acceptance: what it accepts, or why it does not."""

    def accepts(self, name: str) -> bool:
        """Return True if the change called ``name`` is accepted."""
        return any(accepted.change == name for accepted in self.accepted)


def list_names(baseline: BaselineChange | None, speed: ComparedSpeed | None, capabilities: Sequence[CapabilityChange]) -> tuple[str, ...]:
    """Return the names of all changes for a config to accept.

    They are the kinds of change of the baseline's answers, the slower parts and the lost features. Where the distributions shifted broadly,
    as by quantised weights, that may explain further kinds or hide them. These possible kinds have to be accepted too: until then the
    baseline's answers count as unknown.
    """
    kinds = [name(kind) for kind in (*baseline.kinds, *baseline.possible_kinds)] if baseline else []
    slow = [name_slow(slow.part) for slow in speed.slower] if speed else []
    return tuple(dict.fromkeys([*kinds, *slow, *(change.name for change in capabilities if change.is_loss)]))


def list_unknown(baseline: BaselineChange | None, speed: ComparedSpeed | None) -> frozenset[str]:
    """Return the names of changes that the comparison could not rule out.

    They are all kinds of change of the baseline if its answers were not compared, or not in full (``baseline.why``), and all slower parts
    if speeds were not compared, not held against a gate or not decided.
    """
    is_known = baseline is not None and not baseline.why
    is_timed = speed is not None and not speed.not_gated and not speed.undecided
    return frozenset([*(() if is_known else map(name, ChangeKind)), *(() if is_timed else map(name_slow, SlowPart))])


def name(member: ChangeKind | SlowPart) -> str:
    """Return the name of a kind of change: ``chat-template``."""
    return member.name.lower().replace("_", "-")


def name_slow(part: SlowPart) -> str:
    """Return the name of a slowdown: ``slower-step``."""
    return f"slower-{name(part)}"


def review(acceptances: Iterable[AcceptedChange], names: Iterable[str], day: date, unknown: Collection[str] = ()) -> Review:
    """Return the valid acceptances, and one line on every acceptance.

    ``acceptances`` are those of the config, and ``names`` the changes of this upgrade. An acceptance is valid if its change is one of
    these and ``day`` is not after its last day. A line calls an acceptance accepted, expired, not used or not judged. The last is one whose
    change is among ``unknown``, which the comparison could not rule out.
    """
    changes, from_config = tuple(dict.fromkeys(names)), tuple(acceptances)
    valid = tuple(one for one in from_config if one.change in changes and day <= one.expires)
    return Review(accepted=valid, lines=tuple(printable(line) for one in from_config for line in _describe(one, changes, day, unknown)))


def _describe(acceptance: AcceptedChange, names: tuple[str, ...], day: date, unknown: Collection[str]) -> Iterator[str]:
    """Yield one line on an acceptance: not judged, not used, expired or accepted.

    ``names`` are the changes of this upgrade, and ``unknown`` those that it may have.
    """
    if acceptance.change in unknown and acceptance.change not in names:
        yield f"not judged: {acceptance.source} accepts {acceptance.change}; whether this upgrade has that change is not known; keep it"
    elif acceptance.change not in names:
        remedy = f"the changes here are {', '.join(names)}; correct or remove it" if names else "remove it"
        yield f"not used: {acceptance.source} accepts {acceptance.change}, which is no change of this upgrade; {remedy}"
    elif day > acceptance.expires:
        last_day = f"accepted {acceptance.change} until {acceptance.expires}"
        yield f"expired: {acceptance.source} {last_day}; ask {acceptance.owner}, then renew or remove it"
    else:
        yield f"accepted: {acceptance} ({acceptance.source})"

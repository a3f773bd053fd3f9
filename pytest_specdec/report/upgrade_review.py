"""The changes of an upgrade that a config accepts by name, and the acceptances that no longer hold or are not needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.report.escape import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import date

    from pytest_specdec.model.upgrade_gates import AcceptedChange

__all__ = ["Review", "review"]


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


def review(acceptances: Iterable[AcceptedChange], names: Iterable[str], day: date) -> Review:
    """Return the valid acceptances, and one line on every acceptance.

    ``acceptances`` are those of the config, and ``names`` the changes of this upgrade. An acceptance is valid if its change is one of
    these and ``day`` is not after its last day. The lines say of every acceptance whether it is accepted, expired or not used.
    """
    changes, stated = tuple(dict.fromkeys(names)), tuple(acceptances)
    held = tuple(one for one in stated if one.change in changes and day <= one.expires)
    return Review(accepted=held, lines=tuple(printable(line) for one in stated for line in _describe(one, changes, day)))


def _describe(accepted: AcceptedChange, names: tuple[str, ...], day: date) -> Iterator[str]:
    """Yield one line on an acceptance: not used, expired or accepted.

    ``names`` are the changes of this upgrade.
    """
    if accepted.change not in names:
        remedy = f"the changes here are {', '.join(names)}; correct or remove it" if names else "remove it"
        yield f"not used: {accepted.source} accepts {accepted.change}, which is no change of this upgrade; {remedy}"
    elif day > accepted.expires:
        last_day = f"accepted {accepted.change} until {accepted.expires}"
        yield f"expired: {accepted.source} {last_day}; ask {accepted.owner}, then renew or remove it"
    else:
        yield f"accepted: {accepted} ({accepted.source})"

"""A clause of the contract: one claim of an adapter, the check of it on a live server, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_specdec.doctor.contract.visit import Visit


class Outcome(StrEnum):
    """What became of a claim."""

    KEPT = "kept"
    BROKEN = "broken"
    """The server does something else than the adapter says."""
    NOT_CLAIMED = "not claimed"
    """The adapter says None, or nothing beyond the OpenAI protocol."""
    UNCHECKED = "could not be checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check."""

    outcome: Outcome
    evidence: str
    """One line: what was seen, or why there is nothing to see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One claim."""

    name: str
    members: tuple[str, ...]
    """The members of ``Dialect`` and ``Engine`` (``engines/protocol.py``) that make the claim."""
    check: Callable[[Visit], Finding]
    baseline: bool = True
    """Whether the baseline's server is held to it."""
    variant: bool = True


def kept(evidence: str) -> Finding:
    """Return the finding of a kept claim.

    The server does as the adapter says.
    """
    return Finding(outcome=Outcome.KEPT, evidence=evidence)


def broken(evidence: str) -> Finding:
    """Return the finding of a broken claim.

    The server does not do as the adapter says.
    """
    return Finding(outcome=Outcome.BROKEN, evidence=evidence)


def not_claimed(evidence: str) -> Finding:
    """Return the finding of no claim by the adapter."""
    return Finding(outcome=Outcome.NOT_CLAIMED, evidence=evidence)


def unchecked(evidence: str) -> Finding:
    """Return the finding of a claim not checked.

    The claim stands and could not be checked on the server.
    """
    return Finding(outcome=Outcome.UNCHECKED, evidence=evidence)

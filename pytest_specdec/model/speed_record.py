"""A speed record: timed answers and verify steps of one run, to be compared with those of another run of the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_specdec.model.transcript import Transcript
from pytest_specdec.model.workload import Workload

__all__ = ["DraftedWorkload", "SpeedRecord", "TimedWorkload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedWorkload:
    """The timed answers of all arms to one workload."""

    workload: Workload
    boots: Mapping[str, tuple[Transcript, ...]]
    """By arm, ``baseline`` or a variant: the transcripts of its boots, each boot once."""
    alternated: bool = False
    """Whether these boots came in turn with those that they are compared with, so that both met the same state of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedWorkload:
    """A variant's answers to a workload at which it drafts in every run alike."""

    workload: Workload
    transcript: Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRecord:
    """What one run knows of its servers' speed."""

    machine: str
    """The machine's name; empty where servers were attached, whose machine is unknown."""
    timed: Mapping[str, TimedWorkload] = field(default_factory=dict)
    """By name of the workload."""
    drafted: Mapping[str, tuple[DraftedWorkload, ...]] = field(default_factory=dict)
    """By variant."""

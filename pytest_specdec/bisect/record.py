"""The file of a bisect: what is asked, and the answer of every run, so that the same command goes on where it ended.

A bisect searches an engine's releases for the first one with a fault. Its ends are the releases that the command line calls good and bad.
A trial is one run of the tests at one release.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from pytest_specdec.bisect import search
from pytest_specdec.bisect.search import Answer
from pytest_specdec.errors import RunError
from pytest_specdec.files import codec
from pytest_specdec.files.run_directory import atomic_write, read_text

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "pytest-specdec:bisect:1"
FILE = "bisect.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The question put to every release, and the two ends of the search."""

    config: str
    """The path of the config."""
    config_digest: str
    """The first digits of the SHA-256 of the config's text."""
    good: str
    bad: str
    tests: tuple[str, ...]
    """Arguments of pytest that select the tests."""
    depth: str
    detection: float
    """Probability with which a run at a bad release is red."""
    package: str = ""
    """That pip lists the releases of, as the command line names it; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a release."""

    release: str
    answer: Answer
    seconds: float
    run: str = ""
    """The run directory; empty where there was none."""
    exit_code: int = -1
    """That of pytest under ``--specdec-exit-codes``; -1 where it was not started."""
    engine: str = ""
    """The version that the server or its program reports."""
    faults: tuple[str, ...] = ()
    """Ids of the tests that a fault of the engine turned red."""
    name: str = ""
    """Of the finding; empty without one."""
    headline: str = ""
    """The verdict of the finding, or why there is no answer."""
    replay: str = ""
    """The command that judges the finding's stored answers again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A bisect as far as it has come."""

    question: Question
    releases: tuple[str, ...]
    """From the good end to the bad one."""
    trials: tuple[Trial, ...] = ()

    @property
    def step(self) -> search.Ask | search.Result:
        """The release to run next, or the result."""
        trials = [search.Trial(release=trial.release, answer=trial.answer) for trial in self.trials]
        return search.next_step(self.releases, trials, self.question.detection)

    @property
    def targets(self) -> frozenset[str]:
        """The tests that the fault turns red at the bad end.

        Those that an older fault turns red, one that the good end has too, are left out. Empty until a run of the bad end was red.
        """
        return self._faults(self.question.bad) - self.older

    @property
    def older(self) -> frozenset[str]:
        """The tests that an older fault turns red at both ends.

        Empty if the bad end has no further red tests: the fault at both ends may then be the one that is searched for.
        """
        good, bad = self._faults(self.question.good), self._faults(self.question.bad)
        return good & bad if bad - good else frozenset()

    def _faults(self, release: str) -> frozenset[str]:
        """Return the tests that any run of a release found a fault with."""
        return frozenset(nodeid for trial in self.of(release) for nodeid in trial.faults)

    def of(self, release: str) -> tuple[Trial, ...]:
        """Return the runs of a release, in their order."""
        return tuple(trial for trial in self.trials if trial.release == release)


def write(path: Path, record: Record) -> None:
    """Write a record to ``path``. Raises RunError if that is impossible."""
    values = codec.encode(record)
    assert isinstance(values, dict)
    atomic_write(path, json.dumps({"schema": SCHEMA, **values}, ensure_ascii=False, indent=1) + "\n")


def take_up(path: Path, question: Question, releases: tuple[str, ...] = ()) -> Record | None:
    """Return the record of an earlier bisect, to go on with.

    Trials of releases that could not be tested are left out (:func:`_is_void`), so that these are tried again: the
    reason may be mended by now. ``releases`` are those that the command line lists, from the good end to the bad one;
    empty if it lists none. Returns None without a file. Raises RunError for a file that is no record or of another
    schema, then for another question or other releases, and SpecdecError if the search of its trials makes no progress.
    """
    record = _read_record(path)
    if record is None:
        return None
    _require_same_search(path, record, question, releases)
    step = record.step  # a result if the search had come to its end
    given_up = step.untestable if isinstance(step, search.Result) else ()
    return replace(record, trials=tuple(trial for trial in record.trials if not _is_void(trial, given_up)))


def _is_void(trial: Trial, given_up: tuple[str, ...]) -> bool:
    """Return True if a trial does not count in a search that goes on.

    ``given_up`` are the releases that the search ended with as untestable.
    """
    if trial.answer is Answer.OPEN:
        return trial.release in given_up  # a release with many undecided trials is given up: it gets new ones
    return trial.answer is Answer.UNTESTABLE


def _read_record(path: Path) -> Record | None:
    """Return the record in a file; None without a file.

    Raises RunError for another schema, and for a file that is no record.
    """
    try:
        values = dict(json.loads(read_text(path)))
        codec.check_schema(str(path), values.pop("schema", None), SCHEMA)
        return codec.decode(Record, values)
    except FileNotFoundError:
        return None
    except (RunError, TypeError, ValueError) as error:
        what, remedy = "the file of the bisect cannot be read", "name another folder: --folder F"
        reason = f"{error.what}: {error.found}" if isinstance(error, RunError) else str(error)
        raise RunError(what, where=str(path), found=reason, expected="what an earlier bisect wrote", remedy=remedy) from None


def _require_same_search(path: Path, record: Record, question: Question, releases: tuple[str, ...]) -> None:
    """Raise RunError if a record is of another question or other releases.

    If ``releases`` is empty, those of the record count as the same.
    """
    then_and_now = {field.name: (getattr(record.question, field.name), getattr(question, field.name)) for field in fields(question)}
    then_and_now["releases"] = (record.releases, releases or record.releases)
    differences = [f"{name.replace('_', ' ')}: {then!r}, now {now!r}" for name, (then, now) in then_and_now.items() if then != now]
    if differences:
        what, remedy = "the folder holds another bisect", "name another folder: --folder F"
        expected = "the question that it began with"
        raise RunError(what, where=str(path), found="\n".join(differences), expected=expected, remedy=remedy)

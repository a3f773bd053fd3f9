"""Coverage of public reports: ``python -m benchmarks.coverage --write`` writes docs/coverage.md, ``--check`` says whether it is stale.

For every record of records.json: the suite that would find it, the planted faults that mirror it, or why the reference engine cannot have
it and the test that would catch it elsewhere. A record with neither is open.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Family
from specdec_reference.faults.catalogue import FAULTS
from specdec_reference.lawful import VARIATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["PAGE", "Record", "covered", "not_expressible", "page", "records"]

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "coverage.md"
PROBES: Mapping[str, Family] = {
    f"P{number:02}": Family(name)
    for number, name in enumerate(
        (
            *("greedy", "sampling", "seeds", "parameters", "lengths", "invariants", "logprobs", "structured", "tools", "state"),
            *("concurrency", "context", "pressure", "liveness", "speed", "responses"),
        ),
        1,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A public report of a fault of speculative decoding."""

    key: str
    """``owner/repository#number``, with what tells two records of one report apart."""
    engine: str
    url: str
    title: str
    """In our words."""
    kind: str
    """Its class of faults."""
    family: Family
    """The family that would find it first."""


def records() -> tuple[Record, ...]:
    """Return the records, in the order of the file."""
    entries: list[Mapping[str, str]] = json.loads((HERE / "records.json").read_text(encoding="utf-8"))
    return tuple(
        Record(key=one["key"], engine=one["engine"], url=one["url"], title=one["title"], kind=one["class"], family=_family(one))
        for one in entries
    )


def _family(entry: Mapping[str, str]) -> Family:
    """Return the family of an entry, which names it, or its probe as the first reports do."""
    return PROBES[entry["probe"]] if "probe" in entry else Family(entry["family"])


def not_expressible() -> Mapping[str, str]:
    """Return by key why the reference engine cannot have such a fault, and the test that would catch it on an engine that can."""
    reasons: dict[str, dict[str, str]] = json.loads((HERE / "not_expressible.json").read_text(encoding="utf-8"))
    return {key: f"{one['why']} Test: {one['test']}" for key, one in reasons.items()}


def covered() -> Mapping[str, tuple[str, ...]]:
    """Return the faults, and variations that must stay green, that mirror a record, by its key."""
    mirrored = [(key, fault.id) for fault in FAULTS.values() for key in fault.mirrors]
    mirrored += [(key, f"{name} (must stay green)") for name, one in VARIATIONS.items() for key in one.mirrors]
    return {key: tuple(name for other, name in mirrored if other == key) for key, _ in mirrored}


def page() -> str:
    """Return docs/coverage.md. Raises ValueError for a fault that mirrors a record that is not there."""
    known, mirrored, reasons = records(), covered(), not_expressible()
    unknown = sorted({*mirrored, *reasons} - {record.key for record in known})
    if unknown:
        msg = f"no record of {', '.join(unknown)}: add it to benchmarks/records.json"
        raise ValueError(msg)
    return "\n".join([*_head(known, mirrored, reasons), *_rows(known, mirrored, reasons), ""])


def _head(known: Sequence[Record], mirrored: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> Iterator[str]:
    kinds = Counter(_state(record, mirrored, reasons) for record in known)
    yield "# Coverage: public reports, and the planted faults that mirror them"
    yield ""
    yield "Written by `python -m benchmarks.coverage --write`; do not edit. A fault mirrors a report where its row names it (`mirrors=`)."
    yield "The suite is the one that would find such a fault first. Titles are in our words. Where the reference engine cannot have"
    yield "a fault, the test is named that would catch it on an engine that can."
    yield ""
    yield f"{len(known)} reports: {kinds['mirrored']} mirrored, {kinds['not expressible']} not expressible, {kinds['open']} open."
    yield ""
    yield "| suite | reports | mirrored | not expressible | open |"
    yield "|---|--:|--:|--:|--:|"
    for family in dict.fromkeys([*PROBES.values(), *(record.family for record in known)]):
        states = Counter(_state(record, mirrored, reasons) for record in known if record.family is family)
        counts = (states.total(), states["mirrored"], states["not expressible"], states["open"])
        yield f"| {family} | {' | '.join(map(str, counts))} |"
    yield ""


def _state(record: Record, mirrored: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> str:
    return "mirrored" if record.key in mirrored else "not expressible" if record.key in reasons else "open"


def _rows(known: Sequence[Record], mirrored: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> Iterator[str]:
    yield "| report | class | what happened | suite | planted fault |"
    yield "|---|---|---|---|---|"
    for record in known:
        faults = ", ".join(f"`{name}`" for name in mirrored.get(record.key, ())).replace(" (must stay green)`", "` (must stay green)")
        state = faults or (f"not expressible: {reasons[record.key]}" if record.key in reasons else "open")
        title = record.title.replace("|", "\\|")
        yield f"| [{record.key}]({record.url}) ({record.engine}) | {record.kind} | {title} | suites/{record.family} | {state} |"


def main() -> int:
    """Write the page or say whether it is stale; 1 when it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = page()
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
    if options.check and PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE.name} is stale: python -m benchmarks.coverage --write", file=sys.stderr)
        return 1
    print(text.split("\n")[6])
    return 0


if __name__ == "__main__":
    sys.exit(main())

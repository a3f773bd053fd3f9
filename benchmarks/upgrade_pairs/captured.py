"""Captured pairs: healthy runs of the reference engine with other numerics, batch sizes and boots, every two of them compared.

N runs give N (N - 1) ordered pairs. Pairs with a run in common depend on each other, and the engine's noise hangs on text, kernel and batch
alone: two runs of one form repeat it. What differs from run to run is its form, so that the N (N - 1) pairs are as many combinations of N
forms, and no sample of chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import permutations
from typing import TYPE_CHECKING

from benchmarks import upgrades
from benchmarks.healthy import WORLDS
from pytest_specdec.plugin.against import compare
from pytest_specdec.plugin.report_files import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_specdec.judge.baseline_change import BaselineChange

__all__ = ["FORMS", "CapturedPair", "capture", "compare_pairs"]

_FEW: Mapping[str, object] = {"max-num-seqs": 4}
FORMS: Mapping[str, Mapping[str, object]] = {
    **{world: {"numerics": WORLDS[world]} if WORLDS[world] else {} for world in ("exact", "g.03", "bf16.03", "out1e-3", "boot.1", "mt3.1")},
    "exact, 4 at once": _FEW,
    "bf16.03, 4 at once": {"numerics": WORLDS["bf16.03"], **_FEW},
    "exact, again": {},
    "ver.1": {"numerics": WORLDS["ver.1"]},
    "fp16.004": {"numerics": WORLDS["fp16.004"]},
    "g.1": {"numerics": WORLDS["g.1"]},
    "bf16.03, again": {"numerics": WORLDS["bf16.03"]},
    "mt3.03": {"numerics": WORLDS["mt3.03"]},
    "out1e-3, 4 at once": {"numerics": WORLDS["out1e-3"], **_FEW},
}
"""Arguments of both arms, by form: the worlds of ``benchmarks.healthy``, some of them with another batch size or a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedPair:
    """Two runs, and what their comparison says."""

    old: str
    new: str
    headline: str
    change: BaselineChange | None


def capture(folder: Path) -> Iterator[str]:
    """Capture the forms that ``folder`` does not hold, and yield their names."""
    for form, engine in FORMS.items():
        place = _place(folder, form)
        if not (place / "run" / "run.json").exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            upgrades.judge(upgrades.Upgrade(title=form, word="", engine=engine), place, place / "run")
            yield form


def compare_pairs(folder: Path) -> Iterator[CapturedPair]:
    """Yield the comparison of every two runs that ``folder`` holds, either way round."""
    places = {form: _place(folder, form) / "run" for form in FORMS}
    runs = {form: read_run(place) for form, place in places.items() if (place / "run.json").exists()}
    today = datetime.now(tz=UTC).date()
    for old, new in permutations(runs, 2):
        changes = compare(places[old], places[new], runs[old], runs[new], day=today)
        yield CapturedPair(old=old, new=new, headline=changes.headline, change=changes.baseline)


def _place(folder: Path, form: str) -> Path:
    return folder / form.replace(", ", "-").replace(" ", "-")

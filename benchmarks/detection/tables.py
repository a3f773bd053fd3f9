"""Tables: the stored figures as Markdown."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from benchmarks.detection.cells import mode_name
from benchmarks.detection.grid import EXACT, NONE, SURROGATE
from benchmarks.detection.targets import HIDDEN, KNOWN, invisible, kept, way

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from benchmarks.detection.targets import Cell, Target

__all__ = ["page"]


def page(
    settings: Mapping[str, object],
    environment: Mapping[str, str],
    parts: Mapping[str, Sequence[Cell]],
    targets: Iterable[Target],
) -> str:
    """Return the whole page; ``parts`` holds rows by ``cells``, ``healthy``, ``promises`` and ``spots``."""
    cells = parts["cells"]
    lines = [
        "# Detection of planted sampling faults",
        "",
        ", ".join(f"{name} {value}" for name, value in environment.items()) + ".",
        ", ".join(f"{name} {value}" for name, value in settings.items()) + ".",
        "",
        *INTRODUCTION,
        "",
        "## Targets",
        "",
        "```",
        *(str(one) for one in targets),
        "```",
        "",
        "## Tokens to an alarm",
        "",
        *_alarms(cells),
        "",
        "## Names",
        "",
        *_names(cells),
        "",
        "## What stays invisible",
        "",
        *_invisible(cells),
        "",
        "## Healthy servers",
        "",
        *_healthy(parts["healthy"]),
        "",
        "## Promised and observed power",
        "",
        *_promises(parts["promises"]),
        *(["", "## Over HTTP", "", *_spots(parts["spots"], cells)] if parts["spots"] else []),
    ]
    return "\n".join(lines) + "\n"


INTRODUCTION = (
    "Servers that speculate over positions captured from the reference engine: p and q of its target and draft model, 20 top tokens",
    "and a remainder, windows of three drafts, answers of 64 tokens. `model` drafts are drawn from q, `greedy` ones are its favourite.",
    "TV and KL are per emitted token, exact, windows known. The bound is kl(0.99 || alpha) / KL: no sequential test of this size and power",
    "needs fewer tokens on average (Wald). Under top-p the judge grants a correct server what its margins leave, and so does the bound.",
    "An alarm is wealth 1/alpha, looked at after every token. Told is median / 99 % of all runs; - is more than the most looked at.",
    "Without q the remainder, one outcome here, flatters the judge of drawn drafts: unknown_draft.md has figures from whole vocabularies.",
)


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _head(*names: str) -> Iterator[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _number(value: float) -> str:
    return "-" if value == inf else f"{value:,.0f}"


def _took(cell: Cell, mode: str) -> str:
    figures = way(cell, mode)
    return f"{_number(figures['median'])} / {_number(figures['late'])}"


def _alarms(cells: Sequence[Cell]) -> Iterator[str]:
    modes = [mode_name(knows, windows=windows) for windows in (True, False) for knows in (EXACT, SURROGATE, NONE)]
    yield from _head("fault", "drafts", "TV", "KL", "bound", "median/bound", "bound, hidden", *modes)
    for cell in cells:
        distances = ("", "", "", "", "")
        if "bound" in cell:
            ratio = way(cell)["median"] / cell["bound"]
            distances = (
                f"{cell['variation']:.4f}",
                f"{cell['divergence']:.2g}",
                _number(cell["bound"]),
                "-" if ratio == inf else f"{ratio:.2f}",
                _number(cell["bound_hidden"]),
            )
        yield _row(cell["fault"], cell["kind"], *distances, *(_took(cell, mode) for mode in modes))


def _names(cells: Sequence[Cell]) -> Iterator[str]:
    yield from _head("fault", "drafts", "at alarm: family", "rule", "at the end: family", "rule", "hidden: family", "named at the end")
    for cell in cells:
        early, late, hidden = way(cell, KNOWN)["at_alarm"], way(cell, KNOWN)["at_end"], way(cell, HIDDEN)["at_end"]
        names = ", ".join(f"{name} {count}" for name, count in list(late["names"].items())[:3])
        shares = [_share(end, what) for end in (early, late) for what in ("family", "rule")]
        yield _row(cell["fault"], cell["kind"], *shares, _share(hidden, "family"), names)


def _share(end: Mapping[str, object], what: str) -> str:
    return "" if end[what] is None or not end["named"] else f"{end[what]}/{end['named']}"


def _invisible(cells: Sequence[Cell]) -> Iterator[str]:
    yield "Below 3e-4 nats a token, or silent at the median after the most tokens, draft distribution and windows known:"
    yield ""
    yield from _head("fault", "drafts", "TV", "KL", "what it would take")
    for cell in cells:
        if invisible(cell) or way(cell)["median"] == inf:
            least = f"{_number(cell['bound'])} tokens on average at the very least" if "bound" in cell else "unknown"
            yield _row(
                cell["fault"], cell["kind"], f"{cell.get('variation', 0):.4f}", f"{cell.get('divergence', 0):.2g}", _needed(cell, least)
            )
    yield ""
    yield "Silent at the median without the draft's distribution (`surrogate`, windows known):"
    yield ""
    yield from _head("fault", "drafts", "TV", "alarmed in the end", "what it would take")
    for cell in cells:
        guess = way(cell, mode_name(SURROGATE, windows=True))
        if guess["median"] == inf:
            needed = _needed(cell, f"the draft's distribution: {_took(cell, KNOWN)} tokens with it")
            yield _row(cell["fault"], cell["kind"], f"{cell.get('variation', 0):.4f}", f"{guess['alarmed']}/{cell['runs']}", needed)


def _needed(cell: Cell, otherwise: str) -> str:
    return otherwise if cell["directed"] else "no direction to bet on: reported log-probabilities show it (suites/logprobs)"


def _healthy(rows: Sequence[Cell]) -> Iterator[str]:
    yield from _head("asked", "drafts", "runs", "tokens each", "alarms")
    for row in rows:
        yield _row(
            row["asked"], row["kind"], row["runs"], f"{row['tokens']:,}", ", ".join(f"{mode}: {n}" for mode, n in row["alarms"].items())
        )


def _promises(rows: Sequence[Cell]) -> Iterator[str]:
    yield from _head("drafts", "tokens", "fault", "promised", "observed", "99 % interval", "runs", "")
    for row in rows:
        within = f"[{row['low']:.3f}, {row['high']:.3f}]"
        verdict = "kept" if kept(row) else "BROKEN"
        observed = f"{row['observed']:.3f}"
        yield _row(row["kind"], f"{row['tokens']:,}", row["fault"], f"{row['promised']:.3f}", observed, within, row["runs"], verdict)


def _spots(rows: Sequence[Cell], cells: Sequence[Cell]) -> Iterator[str]:
    simulated = {cell["fault"]: _took(cell, KNOWN) for cell in cells if cell["kind"] == "model"}
    yield from _head("fault of the reference engine", "outcome", "named", "tokens to the alarm", "of", "simulated, median / 99 %")
    for row in rows:
        beside = f"{row['simulated']}: {simulated.get(row['simulated'], 'not run')}"
        alarm = "-" if row["alarm"] is None else f"{row['alarm']:,.0f}"
        yield _row(row["fault"], row["outcome"], row["named"], alarm, f"{row['tokens']:,.0f}", beside)

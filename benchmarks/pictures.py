"""The pictures of docs/, the same bytes every time.

What they show is computed by the judges' own modules: wealths from the seeded simulation, a verify step from the reference engine's rule,
distributions from the catalogue of faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import example
from benchmarks.bank import zipf
from benchmarks.detection.faults import RULES
from benchmarks.drawing import Drawing
from benchmarks.simulation import RIGHT, simulate
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Family
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.verify_slots import slots_from_windows
from specdec_reference.rejection_sampler import accept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.simulation import Rules
    from pytest_specdec.stats.token_distribution import Floats

__all__ = ["pictures"]

SEED = 0
ANSWERS, ANSWER_TOKENS = 24, 64
SERVERS: Sequence[tuple[str, Rules, int, str]] = (
    ("four correct servers", RIGHT, 4, "blue"),
    ("leak of 5%", RULES["acceptance-leak-5"], 1, "purple"),
    ("leak of 20%", RULES["acceptance-leak-20"], 1, "orange"),
    ("lenient, 1.5 p/q", RULES["lenient"], 1, "red"),
    ("accept-all", RULES["accept-all"], 1, "red"),
)
SHOWN_EVERY = 8
"""Tokens."""
LEFT, RIGHT_EDGE, TOP, BOTTOM = 62.0, 620.0, 92.0, 372.0
LOWEST, HIGHEST = -2, 8
"""Powers of ten on the axis."""
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def wealths() -> list[tuple[str, str, Floats]]:
    """Return name, colour and log10 wealth of every server's run after every token, with the draft's distribution and windows known."""
    random = np.random.default_rng(SEED)
    bank = zipf(random, positions=300, vocabulary=1000, top_tokens=20)
    found = []
    for name, rules, runs, colour in SERVERS:
        seen = simulate(bank, rules, random, runs=runs, answers=ANSWERS, tokens=ANSWER_TOKENS, k=3)
        found += [(name, colour, path / np.log(10)) for path in mixture(bettors(seen), runs=runs)]
    return found


def wealth() -> Drawing:
    """Draw what a panel of bettors earns on correct and on faulty servers, token by token."""
    drawing = Drawing(width=760, height=420, title="Wealth of the panel, token by token, on correct and on faulty servers")
    drawing.text(20, 28, "Wealth of the panel, token by token: the evidence against a correct sampler", "ink strong")
    _axes(drawing)
    barrier = -np.log10(FAMILIES[Family.SAMPLING].alpha(1))
    drawing.line([(LEFT, _y(barrier)), (RIGHT_EDGE, _y(barrier))], "ink bold dashed")
    drawing.text(RIGHT_EDGE + 8, _y(barrier) - 2, f"alarm: {10**barrier:,.0f}")
    drawing.text(RIGHT_EDGE + 8, _y(barrier) + 15, f"= 10^{barrier:.1f}", "soft small")
    drawn = wealths()
    for name, colour, path in drawn:
        _curve(drawing, name, colour, path, barrier)
    healthy = [path[-1] for name, _, path in drawn if name == SERVERS[0][0]]
    drawing.text(RIGHT_EDGE + 8, _y(min(healthy)) + 10, SERVERS[0][0], "blue small")
    return drawing


def _x(token: float) -> float:
    return LEFT + (RIGHT_EDGE - LEFT) * token / (ANSWERS * ANSWER_TOKENS)


def _y(power: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * (power - LOWEST) / (HIGHEST - LOWEST)


def _axes(drawing: Drawing) -> None:
    for power in range(LOWEST, HIGHEST + 1, 2):
        drawing.line([(LEFT, _y(power)), (RIGHT_EDGE, _y(power))], "rule")
        drawing.text(LEFT - 8, _y(power) + 5, f"10{str(power).translate(SUPERSCRIPT)}" if power else "1", "soft small", anchor="end")
    for token in range(0, ANSWERS * ANSWER_TOKENS, 250):
        drawing.text(_x(token), BOTTOM + 18, f"{token:,}", "soft small", anchor="middle")
    drawing.text((LEFT + RIGHT_EDGE) / 2, BOTTOM + 38, "tokens judged", "soft small", anchor="middle")


def _curve(drawing: Drawing, name: str, colour: str, path: Floats, barrier: float) -> None:
    """Draw one run up to where it leaves the panel, with a dot and a word where it alarms."""
    reached = np.flatnonzero(path >= barrier)
    gone = np.flatnonzero(path > HIGHEST)
    end = int(gone[0]) if len(gone) else len(path) - 1
    shown = [token for token in range(end) if token % SHOWN_EVERY == 0 or token in reached[:1]]
    points = [(_x(0), _y(0)), *((_x(token + 1), _y(path[token])) for token in shown), (_x(end + 1), _y(min(path[end], HIGHEST)))]
    drawing.line(points, f"{colour} bold")
    if len(reached):
        drawing.dot(_x(int(reached[0]) + 1), _y(path[reached[0]]), colour)
        x, y = (_x(end), TOP - 24) if len(gone) else (RIGHT_EDGE + 8, _y(path[-1]) - 4)
        drawing.text(x, y, name, colour)
        drawing.text(x, y + 16, f"alarm after {int(reached[0]) + 1:,}", "soft small")
    elif name != SERVERS[0][0]:
        drawing.text(RIGHT_EDGE + 8, _y(path[-1]) - 6, f"{name}: no alarm", f"{colour} small")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One verify step: what was drafted, with its probabilities, and the random numbers that decided."""

    words: tuple[str, ...]
    q: tuple[float, ...]
    """The draft's probability of each drafted word."""
    p: tuple[float, ...]
    """The target's."""
    uniforms: tuple[float, ...]
    then: str
    """The word of the target's own that follows the accepted ones."""

    @property
    def accepted(self) -> int:
        """How many drafted words are kept: those before the first refusal."""
        kept = accept(np.array([self.p]), np.array([self.q]), np.array([self.uniforms]))[0]
        return int(np.logical_and.accumulate(kept).sum())


STEPS = (
    Step(words=("is", "Lyon", "and"), q=(0.9, 0.5, 0.7), p=(0.8, 0.1, 0.6), uniforms=(0.31, 0.64, 0.12), then="Paris"),
    Step(words=(",", "a", "city"), q=(0.6, 0.4, 0.5), p=(0.7, 0.5, 0.4), uniforms=(0.83, 0.27, 0.55), then="on"),
)
CELL, GAP, FIRST = 118.0, 8.0, 196.0
ROW = {"drafted": 52.0, "chance": 98.0, "emitted": 132.0}


def step() -> Drawing:
    """Draw two verify steps: one with a refusal, one whose draft is accepted whole."""
    drawing = Drawing(
        width=760, height=420, title="Two verify steps: drafted, accepted, refused, recovered and bonus tokens, with their slots"
    )
    drawing.text(20, 28, "The capital of France …", "ink strong")
    windows = [1, *(one.accepted + 1 for one in STEPS)]
    slots = slots_from_windows(windows, sum(windows), lambda _: len(STEPS[0].words))
    first = 1
    for number, (one, top) in enumerate(zip(STEPS, (34.0, 224.0), strict=True), start=1):
        drawing.text(20, top + ROW["drafted"] - 18, f"step {number}", "ink strong")
        _drafted(drawing, one, top)
        numbers = slots.slot[first : first + one.accepted + 1].tolist()
        _emitted(drawing, one, top, numbers, bonus=bool(slots.bonus_slot[first + one.accepted]))
        first += one.accepted + 1
    return drawing


def _cell(drawing: Drawing, index: int, y: float, word: str, colour: str, *, style: str = "") -> None:
    x = FIRST + index * (CELL + GAP)
    drawing.box(x, y, CELL, 32, f"{colour} faint", radius=6)
    drawing.box(x, y, CELL, 32, f"{colour} drawn", radius=6)
    drawing.text(x + CELL / 2, y + 21, word, f"ink {style}".rstrip(), anchor="middle")


def _drafted(drawing: Drawing, one: Step, top: float) -> None:
    drawing.text(20, top + ROW["drafted"] + 21, "drafted", "soft")
    drawing.text(20, top + ROW["chance"], "accepted with chance", "soft small")
    drawing.text(20, top + ROW["chance"] + 16, "min(1, p/q)", "soft small")
    for index, (word, q, p) in enumerate(zip(one.words, one.q, one.p, strict=True)):
        middle = FIRST + index * (CELL + GAP) + CELL / 2
        seen, refused = index <= one.accepted, index == one.accepted
        colour = "red" if refused else "blue" if seen else "soft"
        _cell(drawing, index, top + ROW["drafted"], word, colour, style="" if colour == "blue" else "struck")
        said = f"p {p:.1f}, q {q:.1f}: {min(1.0, p / q):.2f}" if seen else "behind a refusal:"
        drawing.text(middle, top + ROW["chance"], said, "soft small", anchor="middle")
        drawing.text(
            middle,
            top + ROW["chance"] + 16,
            "refused" if refused else "accepted" if seen else "not looked at",
            "soft small",
            anchor="middle",
        )


def _emitted(drawing: Drawing, one: Step, top: float, slots: Sequence[int], *, bonus: bool) -> None:
    y = top + ROW["emitted"]
    drawing.text(20, y + 21, "emitted: the window", "soft")
    for index, (slot, word) in enumerate(zip(slots, (*one.words[: one.accepted], one.then), strict=True)):
        own = index == one.accepted
        kind = ("bonus" if bonus else "recovered") if own else "accepted"
        _cell(drawing, index, y, word, ("purple" if bonus else "orange") if own else "blue")
        drawing.text(FIRST + index * (CELL + GAP) + CELL / 2, y + 48, f"slot {slot}: {kind}", "soft small", anchor="middle")


BAR, BAR_GAP, PANEL, TALLEST = 46.0, 16.0, 236.0, 190.0


def distribution() -> Drawing:
    """Draw the distribution of one verified position under three rules, accepted and recovered shares stacked."""
    drawing = Drawing(width=760, height=372, title="Distribution of one verified position: correct, lenient acceptance, accept-all")
    drawing.text(20, 28, "The capital of France is …   what is emitted, by how drafts are accepted", "ink strong")
    for index, name in enumerate(example.DISTRIBUTIONS):
        _bars(drawing, 32 + index * PANEL, name)
    y = 352.0
    for x, style, words in ((32, "blue faint", "drafted and accepted"), (206, "orange faint", "recovered after a refusal")):
        drawing.box(x, y - 11, 14, 14, style)
        drawing.text(x + 20, y, words, "soft small")
    drawing.line([(404, y - 4), (430, y - 4)], "ink bold")
    drawing.text(436, y, "the baseline's p: what it should be", "soft small")
    return drawing


def _bars(drawing: Drawing, left: float, name: str) -> None:
    base = 306.0
    drawing.text(left, 66, name, "ink strong")
    times = float((example.DISTRIBUTIONS[name] / example.P)[0, -1])
    drawing.text(left, 84, f"{example.WORDS[-1]} {times:.3g} times as often as p" if times > 1.001 else "every bar at p", "soft small")
    drawing.line([(left, base), (left + 3 * BAR + 2 * BAR_GAP, base)], "soft")
    accepted = (example.Q * example.ACCEPT[name])[0]
    for index, word in enumerate(example.WORDS):
        x, emitted, should = left + index * (BAR + BAR_GAP), float(example.DISTRIBUTIONS[name][0, index]), float(example.P[0, index])
        below, whole = _tall(float(accepted[index])), _tall(emitted)
        drawing.box(x, base - below, BAR, below, "blue faint")
        drawing.box(x, base - whole, BAR, whole - below, "orange faint")
        drawing.line([(x - 5, base - _tall(should)), (x + BAR + 5, base - _tall(should))], "ink bold")
        above = max(whole, _tall(should)) if abs(whole - _tall(should)) < 20 else whole
        drawing.text(x + BAR / 2, base - above - 8, f"{emitted:.2f}", "ink small", anchor="middle")
        drawing.text(x + BAR / 2, base + 18, word, "soft", anchor="middle")


def _tall(share: float) -> float:
    return TALLEST * share / 0.6


def pictures() -> dict[str, str]:
    """Return every picture by its file name."""
    return {"wealth.svg": str(wealth()), "verify-step.svg": str(step()), "one-position.svg": str(distribution())}

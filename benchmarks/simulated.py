"""The sampling judge on servers simulated from scratch: ``python -m benchmarks.simulated [power|size] [--runs N] [--only NAME] [--write]``.

``power`` prints the median tokens to an alarm by fault, for the panel as it is and for the panel without sparse, pointwise and one-number
bets on the very same runs. ``size`` prints how many healthy runs ever reach 20, 100 and 1,000, looked at after every token: half of the
prompts are asked twice, without a seed. Exit code 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from benchmarks.independent import RIGHT, VOCABULARY, K, MadeUpDistributions, Server, made_up, speak
from pytest_specdec.judge.sampling.draft_distribution import certain_view, drawn_view
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.duplicates import copy_distribution
from pytest_specdec.stats.proportions import limits
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.reused_numbers import ReusedNumber
from pytest_specdec.stats.token_distribution import Processing, requested
from pytest_specdec.stats.verify_slots import Observed, VerifySlots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.independent import Text
    from pytest_specdec.stats.betting import Bettor
    from pytest_specdec.stats.token_distribution import Floats, Ints, TokenDistribution

ALPHA = 6.25e-5
ANSWER_TOKENS, TOP_TOKENS = 64, 20
AT_ONCE = 12_288
"""Tokens judged in one go."""
SIZES = (0.05, 0.01, 0.001)
SEED, DISTRIBUTIONS_SEED = 20_261_123, 20_261_122
"""Of the runs, and of the distributions that they are drawn from: stakes were weighed on other runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The sampling parameters of a request and the judge's knowledge of the draft."""

    name: str
    temperature: float = 1.0
    top_p: float = 1.0
    certain: bool = False
    """Whether the draft proposes its best token."""
    draft_known: bool = True
    windows: bool = True
    top_tokens: int = TOP_TOKENS
    cost: int = 1
    """How many times dearer than the others it is: so many times fewer runs."""

    def processing(self, tokens: int) -> Processing:
        """Return the sampling parameters of so many tokens."""
        zeros = np.zeros(tokens, dtype=np.int64)
        return Processing(temperature=np.full(tokens, self.temperature), top_k=zeros, top_p=np.full(tokens, self.top_p))


FORMS = {
    form.name: form
    for form in (
        Form(name="q known"),
        Form(name="one-hot q", certain=True),
        Form(name="no q", draft_known=False, cost=8),
        Form(name="no q, best token", certain=True, draft_known=False, cost=8),
        Form(name="top_p .9", top_p=0.9),
        Form(name="T .6", temperature=0.6),
        Form(name="hidden windows", windows=False),
        Form(name="no q, top_p .9, T .6", top_p=0.9, temperature=0.6, draft_known=False, cost=8),
        Form(name="top-5", top_tokens=5),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fault under one form."""

    name: str
    server: Callable[[MadeUpDistributions], Server]
    tokens: int
    """A run may take."""
    form: str = "q known"
    most: float = np.inf
    """Median tokens allowed."""
    dense: bool = False
    """Whether it may cost a tenth more than without the new bets at most."""


def _accept_all(distributions: MadeUpDistributions) -> Server:
    return Server(accept=np.ones_like(distributions.p))


def _lenient(distributions: MadeUpDistributions) -> Server:
    return Server(accept=np.minimum(1.0, 1.5 * distributions.p / np.maximum(distributions.q, 1e-300)))


def _from_p(distributions: MadeUpDistributions) -> Server:
    return Server(replacement=distributions.p)


def _some(every: int) -> Callable[[MadeUpDistributions], Server]:
    return lambda distributions: replace(_accept_all(distributions), every=every)


def _leak(share: float) -> Callable[[MadeUpDistributions], Server]:
    return lambda distributions: Server(
        accept=(1.0 - share) * np.minimum(1.0, distributions.p / np.maximum(distributions.q, 1e-300)) + share
    )


def _once(_: MadeUpDistributions) -> Server:
    return Server(one_number=True)


def _hundredth(_: MadeUpDistributions) -> Server:
    return Server(leak=0.01)


CELLS = (
    Cell(name="accept-all-1-in-8", server=_some(8), tokens=3072, most=700),
    Cell(name="number-reused-in-window", server=_once, tokens=4096, most=1000),
    Cell(name="acceptance-leak-10", server=_leak(0.1), tokens=8192, most=5500),
    Cell(name="lenient", server=_lenient, tokens=2048, dense=True),
    Cell(name="resample-from-p", server=_from_p, tokens=2048, dense=True),
    Cell(name="accept-all", server=_accept_all, tokens=512, dense=True),
    Cell(name="accept-all-1-in-16", server=_some(16), tokens=8192),
    Cell(name="acceptance-leak-10", server=_leak(0.1), tokens=8192, form="top-5", most=5500),
    Cell(name="unverified-draft-1", server=_hundredth, tokens=8192),
    *(
        Cell(name=name, server=server, tokens=tokens, form="one-hot q", dense=dense)
        for name, server, tokens, dense in (
            ("accept-all-1-in-8", _some(8), 1024, False),
            ("number-reused-in-window", _once, 2048, False),
            ("acceptance-leak-10", _leak(0.1), 2048, True),
            ("lenient", _lenient, 1024, True),
            ("resample-from-p", _from_p, 1024, True),
            ("accept-all", _accept_all, 128, True),
        )
    ),
    *(
        Cell(name=name, server=server, tokens=tokens, form=form, dense=dense)
        for form, name, server, tokens, dense in (
            ("no q", "accept-all-1-in-8", _some(8), 8192, False),
            ("no q", "accept-all", _accept_all, 3072, True),
            ("no q, best token", "accept-all-1-in-8", _some(8), 1024, False),
            ("no q, best token", "number-reused-in-window", _once, 4096, False),
            ("no q, best token", "lenient", _lenient, 1024, True),
            ("no q, best token", "resample-from-p", _from_p, 1024, True),
            ("no q, best token", "accept-all", _accept_all, 512, True),
        )
    ),
)


def observed(distributions: MadeUpDistributions, text: Text, form: Form) -> Observed:
    """Return the judge's view of ``text``, by the functions that read captures."""
    rows, tokens = text.context.ravel(), text.token.ravel()
    processing = form.processing(len(rows))
    listed = _listed(distributions.raw_p, rows, tokens, form.top_tokens)
    distribution = requested(listed, processing)
    plain = Observed(
        distribution=distribution,
        ids=listed.ids,
        q=None,
        drafted=np.zeros(len(rows), dtype=np.bool_),
        slots=_slots(text, windows=form.windows),
        k=K,
        vocabulary=VOCABULARY,
        previous=np.column_stack([np.full(len(text.token), -1), text.token[:, :-1]]).ravel(),
        contexts=rows,
        copies=_copies(text, listed.ids, distribution),
    )
    if not form.draft_known:
        return plain
    if form.certain:
        view = certain_view(distributions.q[rows].argmax(axis=1), listed.ids, distribution, tokens)
    else:
        draft = _listed(distributions.raw_q, rows, tokens, form.top_tokens)
        view = drawn_view(draft, np.ones(len(rows), dtype=np.bool_), listed.ids, distribution, processing)
    return replace(
        plain,
        q=view.q,
        drafted=view.drafted,
        accepted_if_emitted=view.accepted_if_emitted,
        q_chosen=view.chosen,
        accepted_if_drafted=view.accepted_if_drafted,
        listed=view.listed,
        q_raw=view.q_raw,
        previous=None,
        contexts=None,
    )


def _listed(distribution: Floats, rows: Ints, tokens: Ints, top_tokens: int) -> RawDistribution:
    """Return the part of ``distribution`` [C, V] that a server lists at the emitted ``tokens``."""
    ids = np.argsort(-distribution, axis=1)[:, :top_tokens][rows]
    with np.errstate(divide="ignore"):
        logs = np.log(distribution)
    return RawDistribution(
        ids=ids, logprobs=logs[rows[:, None], ids], chosen=tokens, chosen_logprobs=logs[rows, tokens], vocabulary=VOCABULARY
    )


def _slots(text: Text, *, windows: bool) -> VerifySlots:
    last = np.zeros(text.token.shape, dtype=np.bool_)
    last[:, -1] = True
    short = text.ended & (text.drafted > 0) & (text.slot < K)
    ever = np.column_stack([np.zeros(len(short), dtype=np.bool_), np.logical_or.accumulate(short, axis=1)[:, :-1]])
    after = np.zeros_like(short)
    for step in range(1, short.shape[1]):
        after[:, step] = np.where(text.slot[:, step] == 0, short[:, step - 1], after[:, step - 1])
    ever = np.where(text.slot > 0, np.take_along_axis(ever, np.maximum(np.arange(ever.shape[1]) - text.slot, 0), axis=1), ever)
    unknown = np.full(text.token.size, -1, dtype=np.int64)
    return VerifySlots(
        slot=text.slot.ravel() if windows else unknown,
        drafted=text.drafted.ravel() if windows else unknown,
        after_rejection=after.ravel() & windows,
        rejected_before=ever.ravel() & windows,
        ended=text.ended.ravel(),
        last=last.ravel(),
    )


def _copies(text: Text, ids: Ints, distribution: TokenDistribution) -> Floats:
    answers = [tuple(row) for row in text.token.tolist()]
    return copy_distribution(distribution, ids, answers, text.prompt.tolist())


def texts(
    cell_distributions: MadeUpDistributions, server: Server, random: np.random.Generator, *, runs: int, tokens: int
) -> Iterator[tuple[int, Text]]:
    """Yield some runs at a time; every second prompt of a run is asked twice."""
    answers, at_once = tokens // ANSWER_TOKENS, max(1, AT_ONCE // tokens)
    for first in range(0, runs, at_once):
        count = min(at_once, runs - first)
        prompts = random.integers(2**40, size=(count, answers))
        twice = prompts[:, 2::3].shape[1]
        prompts[:, 2::3] = prompts[:, 1::3][:, :twice]
        yield count, speak(cell_distributions, server, random, prompts=prompts.ravel(), tokens=ANSWER_TOKENS)


def without(observation: Observed) -> list[Bettor]:
    """Return the panel without sparse, pointwise and one-number bets."""
    return [
        bettor
        for bettor in bettors(replace(observation, q_chosen=None))
        if not bettor.faulty_fraction and bettor.name != ReusedNumber.WINDOW.value
    ]


def power(cell: Cell, distributions: MadeUpDistributions, runs: int) -> dict[str, object]:
    """Return the median tokens to an alarm with and without the new bets, on the same runs."""
    form, random = FORMS[cell.form], np.random.default_rng([SEED, *cell.name.encode(), *cell.form.encode()])
    requested_distributions = distributions.asked(temperature=form.temperature, top_p=form.top_p, certain=form.certain)
    needed: dict[str, list[float]] = {"with": [], "without": []}
    for count, text in texts(requested_distributions, cell.server(requested_distributions), random, runs=runs, tokens=cell.tokens):
        observation = observed(requested_distributions, text, form)
        needed["with"] += _first(mixture(list(bettors(observation)), runs=count), -np.log(ALPHA))
        if cell.dense:
            needed["without"] += _first(mixture(without(observation), runs=count), -np.log(ALPHA))
    after, before = (float(np.median(needed[panel] or [np.inf])) for panel in ("with", "without"))
    caught = {panel: int(np.isfinite(tokens).sum()) for panel, tokens in needed.items()}
    met = after <= cell.most and (not cell.dense or after <= 1.1 * before)
    return {
        "table": "power",
        "form": cell.form,
        "fault": cell.name,
        "runs": runs,
        "tokens": cell.tokens,
        "median": _shown(after),
        "caught": caught["with"],
        "median without": _shown(before) if cell.dense else "not asked",
        "caught without": caught["without"] if cell.dense else "not asked",
        "allowed": _shown(cell.most) if np.isfinite(cell.most) else "1.1 times without" if cell.dense else "",
        "kept": met,
    }


def _first(wealth: Floats, barrier: float) -> list[float]:
    reached = wealth >= barrier
    return [float(row.argmax()) + 1.0 if row.any() else np.inf for row in reached]


def _shown(tokens: float) -> str:
    return f"{tokens:,.0f}" if np.isfinite(tokens) else "-"


def size(form: Form, distributions: MadeUpDistributions, runs: int, tokens: int) -> Iterator[dict[str, object]]:
    """Yield how many healthy runs ever reach the levels of SIZES."""
    random = np.random.default_rng([SEED, *form.name.encode()])
    requested_distributions = distributions.asked(temperature=form.temperature, top_p=form.top_p, certain=form.certain)
    highest = np.concatenate(
        [
            mixture(bettors(observed(requested_distributions, text, form)), runs=count).max(axis=1)
            for count, text in texts(requested_distributions, RIGHT, random, runs=max(runs // form.cost, 24), tokens=tokens)
        ]
    )
    for alpha in SIZES:
        alarms = int((highest >= -np.log(alpha)).sum())
        within = limits(alarms, len(highest), 0.99)
        yield {
            "table": "size",
            "form": form.name,
            "runs": len(highest),
            "tokens": tokens,
            "alpha": alpha,
            "alarms": alarms,
            "share": f"{alarms / len(highest):.5f}",
            "interval_99": f"[{within.low:.5f}, {within.high:.5f}]",
            "kept": within.low <= alpha,
        }


def main(arguments: list[str]) -> int:
    """Measure, print, and write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("power", "size"), default="power")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=1536, help="of a healthy run")
    parser.add_argument("--only", default="", help="words that the fault or the form holds")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    begun, distributions, rows = time.monotonic(), made_up(np.random.default_rng(DISTRIBUTIONS_SEED)), []
    for row in _rows(options, distributions):
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    if options.write:
        results.write("simulated", rows, command="python -m benchmarks.simulated", seconds=time.monotonic() - begun)
    return 0 if all(row["kept"] for row in rows) else 1


def _rows(options: argparse.Namespace, distributions: MadeUpDistributions) -> Iterator[dict[str, object]]:
    if options.what == "power":
        chosen = [cell for cell in CELLS if options.only in f"{cell.form}: {cell.name}"]
        yield from (power(cell, distributions, options.runs) for cell in chosen)
        return
    for form in FORMS.values():
        if options.only in form.name:
            yield from size(form, distributions, options.runs, options.tokens)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Detection of faults of acceptance where the draft's distribution is not known: ``python -m benchmarks.unknown_draft [--quick]``.

Simulated servers speculate with the whole distributions of the shipped target, draft model and EAGLE-3 head; the judge sees 20 top tokens,
a remainder and the windows. Printed are median tokens to an alarm of the panel without the draft's distribution: of bettors that need only
the token's own distribution, and of the whole panel, which also learns from the windows of earlier tokens. Once every context is new, once
sixteen come again and again. Then the size of the whole panel on correct servers, and tokens until acceptance alone differs from that of a
known-good run, which judges the rule and not the distribution. Writes ``benchmarks/results/unknown_draft.json`` and ``.md``; ``--quick`` is
small and writes nothing, ``--only FORM`` measures one form of power anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from benchmarks import results
from benchmarks.bank import Bank
from benchmarks.detection.bounds import bound, slots
from benchmarks.detection.faults import RULES as PLANTED
from benchmarks.detection.grid import SURROGATE, Grid, grid
from benchmarks.served import K, emitted
from benchmarks.simulation import RIGHT, Rules, Trace, observe
from benchmarks.whole import DRAFTERS, Whole, whole, written
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.workload import Family
from pytest_specdec.stats import adaptive_bettors
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.bettors import WITHOUT_DRAFT_DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

__all__ = ["table"]

HEALTHY = "correct"
RULES: Mapping[str, Rules] = {
    HEALTHY: RIGHT,
    **{
        fault: PLANTED[fault]
        for fault in ("acceptance-leak-20", "lenient", "lenient-1.25", "resample-from-p", "residual-argmax", "bonus-from-q")
    },
}
NEW, AGAIN = "every context new", "sixteen contexts again and again"
ALPHA = FAMILIES[Family.SAMPLING].alpha(1)
LEVEL = -np.log(ALPHA)
ALONE, WHOLE = WAYS = ("token's distribution alone", "whole panel")
LEARNED = WITHOUT_DRAFT_DISTRIBUTION["learned"]
"""Share of the starting wealth that the learning bettors hold."""
VOCABULARY = 4096
BOUND = "bound with the distribution"
MANY = 1e6
"""Tokens beyond which none are told."""
MOST = 3
"""Alarms at .001 among a few hundred correct runs that are too many by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated."""

    texts: int
    runs: int
    most: int
    """Tokens of a run."""
    healthy: int
    """Correct runs by drafter and workload."""
    brief: int = 4096
    """Tokens of a correct run, and after which a faulty one is looked at first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table:
    """What every run is judged with."""

    scale: Scale
    seats: Grid
    """Who needs nothing but the token's own distribution."""


FULL = Scale(texts=64, runs=24, most=16_384, healthy=100)
QUICK = Scale(texts=24, runs=4, most=4096, healthy=4, brief=2048)


def table() -> str:
    """Return the stored medians as Markdown, for docs/what-a-green-run-proves.md."""
    rows = json.loads((results.FOLDER / "unknown_draft.json").read_text(encoding="utf-8"))["rows"]
    power = {(row["drafter"], row["fault"], row["contexts"]): row for row in rows if row["table"] == "power"}
    lines = [
        "| " + " | ".join([fault, drafter, *(new[way] for way in (BOUND, *WAYS)), power[drafter, fault, AGAIN][WHOLE]]) + " |"
        for (drafter, fault, contexts), new in power.items()
        if contexts == NEW
    ]
    columns = ("fault", "drafts drawn from", "bound, distribution known", "token's distribution alone", "and who learns: the panel")
    return "\n".join(["| " + " | ".join([*columns, "the same, sixteen contexts"]) + " |", "|---" * 6 + "|", *lines])


def _bank(one: Whole, noise: float = 0.0) -> Bank:
    """Return the positions as scored, ``noise`` nats off at every token of every context; the draft's distribution is not in it."""
    p = one.p * np.exp(noise * np.random.default_rng(5).normal(size=one.p.shape))
    p /= p.sum(axis=1, keepdims=True)
    return Bank(ids=one.ids, p=p, q=p, drafted=np.ones(len(p), dtype=np.bool_), vocabulary=VOCABULARY)


def learned(one: Whole, bank: Bank, trace: Trace, *, again: bool) -> Floats:
    """Return the log wealth after every token, [N], of the learning bettors."""
    rows = trace.at.ravel()
    # A position that is drawn twice stands for two contexts, unless it is asked again; the token before it is its text's own.
    contexts = rows if again else np.arange(len(rows))
    seen = replace(
        observe(bank, trace, k=K, windows=True),
        q=None,
        accepted_if_emitted=None,
        listed=None,
        contexts=contexts,
        previous=one.before[rows, 0],
    )
    return mixture(adaptive_bettors.adaptive_panel(seen))[0]


def judged_by(alone: Floats, learning: Floats) -> dict[str, Floats]:
    """Return the log wealth of both ways to judge after every token, [N] each."""
    return {ALONE: alone, WHOLE: np.logaddexp(np.log1p(-LEARNED) + alone, np.log(LEARNED) + learning)}


def _panel(seats: Grid, trace: Trace) -> Floats:
    paid = seats.read(trace).reshape(trace.at.size, -1).cumsum(axis=0, dtype=np.float64)
    return np.asarray(logsumexp(paid + seats.log_weights, axis=1))


def _first(path: Floats) -> float:
    reached = path >= LEVEL
    return float(reached.argmax()) + 1.0 if reached.any() else np.inf


def alarms(one: Whole, name: str, table: Table, seed: Sequence[int], *, again: bool) -> dict[str, float]:
    """Return tokens to the alarm in each of the WAYS; inf after the most that are looked at."""
    scale, random = table.scale, np.random.default_rng(seed)
    trace, bank = emitted(one, name, random, tokens=scale.most, again=again), _bank(one)
    alone, found = _panel(table.seats, trace), dict.fromkeys(WAYS, np.inf)
    for tokens in (scale.brief, scale.most):
        part = trace.part(slice(0, -(-tokens // trace.at.shape[1])))
        learning = learned(one, bank, part, again=again)
        found = {way: _first(path) for way, path in judged_by(alone[: part.at.size], learning).items()}
        if np.isfinite([*found.values()]).all():
            break
    return found


def power(drawn: Mapping[str, Whole], table: Table, only: str = "") -> Iterator[dict[str, object]]:
    """Yield how soon each fault is seen, in the form ``only`` or in all."""
    for again in (False, True):
        for drafter, one in drawn.items():
            if only not in {"", f"{drafter}, {AGAIN if again else NEW}"}:
                continue
            for number, name in enumerate(RULES):
                if name == HEALTHY:
                    continue
                seeds = ([1, int(again), DRAFTERS.index(drafter), number, run] for run in range(table.scale.runs))
                found = [alarms(one, name, table, seed, again=again) for seed in seeds]
                here = {"drafter": drafter, "contexts": AGAIN if again else NEW, "fault": name}
                figures: dict[str, str] = {}
                for way in WAYS:
                    tokens = np.array([run[way] for run in found])
                    figures |= {way: _median(tokens), f"{way}, alarmed": f"{np.isfinite(tokens).sum()}/{table.scale.runs}"}
                form = f"{drafter}, {here['contexts']}"
                yield {"table": "power", "form": form, **here, BOUND: _bound(one, name, again=again), **figures}


def _median(tokens: Floats) -> str:
    return _tokens(float(np.quantile(tokens, 0.5, method="higher")))


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if count < MANY else "-"


def _bound(one: Whole, name: str, *, again: bool) -> str:
    """Return the least mean number of tokens with the distribution of the draft on the same top tokens; at all positions evenly."""
    if again:
        return ""
    accepted = float(one.verified[name][:, 0].sum(axis=1).mean())
    shares = slots(accepted, k=K, tokens=64)
    divergence = shares[1] * _divergence(one.verified[name].sum(axis=1), one.p) + shares[2] * _divergence(one.bonus[name], one.p)
    return f"{bound(divergence, ALPHA):,.0f}"


def _divergence(m: Floats, p: Floats) -> float:
    safe = np.maximum(m, 1e-12)
    return float((safe * np.log(safe / p)).sum(axis=1).mean())


def size(drawn: Mapping[str, Whole], table: Table) -> Iterator[dict[str, object]]:
    """Yield how often the whole panel alarms on correct servers, the scores exact or off."""
    for noise in (0.0, 0.02, 0.05):
        runs = table.scale.healthy if not noise else max(table.scale.healthy // 5, 2)
        bank = _bank(drawn[DRAFTERS[0]], noise)
        here = replace(table, seats=grid(bank, SURROGATE, windows=True, k=K))
        peaks = np.array(
            [
                _correct(one, bank, here, [2, int(again), i, run], again=again)
                for i, one in enumerate(drawn.values())
                for again in (False, True)
                for run in range(runs)
            ]
        )
        counts = {f"alarms at {alpha}": int((peaks >= -np.log(alpha)).sum()) for alpha in (0.05, 0.01, 0.001)}
        highest = f"10^{peaks.max() / np.log(10):.1f}"
        yield {"table": "size", "scores off by": noise, "runs": len(peaks), "tokens": table.scale.brief, **counts, "highest": highest}


def _correct(one: Whole, bank: Bank, table: Table, seed: Sequence[int], *, again: bool) -> float:
    random = np.random.default_rng(seed)
    trace = emitted(one, HEALTHY, random, tokens=table.scale.brief, again=again)
    return float(judged_by(_panel(table.seats, trace), learned(one, bank, trace, again=again))[WHOLE].max())


def acceptance(drawn: Mapping[str, Whole]) -> Iterator[dict[str, object]]:
    """Yield the least mean number of tokens in which acceptance alone tells a fault from a known-good run of any length.

    By the overall rate; by the rate among tokens of similar rank and probability; and with the rate of every token at every context.
    """
    for drafter, one in drawn.items():
        rank = np.broadcast_to(np.arange(one.p.shape[1]), one.p.shape)
        kinds: Mapping[str, Callable[[], Ints]] = {
            "overall": lambda rank=rank: np.zeros_like(rank),
            "by rank and probability": lambda rank=rank, one=one: rank * 8 + np.minimum(-np.log(one.p), 7).astype(np.int64),
            "at every token": lambda rank=rank: np.arange(rank.size).reshape(rank.shape),
        }
        for name in RULES:
            if name == HEALTHY:
                continue
            share = slots(float(one.verified[name][:, 0].sum(axis=1).mean()), k=K, tokens=64)[1]
            figures = {words: _tokens(bound(share * _telling(one, name, kind()), ALPHA)) for words, kind in kinds.items()}
            yield {"table": "acceptance", "drafter": drafter, "fault": name, **figures}


def _telling(one: Whole, name: str, kind: Ints) -> float:
    """Return the divergence of acceptance given ``kind`` [B, K+1], in nats a draft slot."""
    good, bad = (
        np.stack([np.bincount(kind.ravel(), weights=distribution[:, way].ravel()) for way in (0, 1)])
        for distribution in (one.verified[HEALTHY], one.verified[name])
    )
    here: Bools = (bad.sum(axis=0) > 0) & (good.sum(axis=0) > 0)
    rates = [np.clip(distribution[0, here] / distribution[:, here].sum(axis=0), 1e-6, 1 - 1e-6) for distribution in (good, bad)]
    each = rates[1] * np.log(rates[1] / rates[0]) + (1 - rates[1]) * np.log((1 - rates[1]) / (1 - rates[0]))
    return float((bad.sum(axis=0)[here] * each).sum() / len(kind))


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few and short runs: that it works, not how well")
    parser.add_argument(
        "--only", default="", choices=("", *(f"{drafter}, {contexts}" for contexts in (NEW, AGAIN) for drafter in DRAFTERS))
    )
    options = parser.parse_args()
    scale, begun = QUICK if options.quick else FULL, time.perf_counter()
    texts = written(scale.texts, np.random.default_rng(1))
    drawn = {
        drafter: whole(texts, drafter, RULES) for drafter in DRAFTERS if options.only in {"", f"{drafter}, {NEW}", f"{drafter}, {AGAIN}"}
    }
    table = Table(
        scale=scale,
        seats=grid(_bank(next(iter(drawn.values()))), SURROGATE, windows=True, k=K),
    )
    kept = True
    parts = (acceptance(drawn), power(drawn, table), size(drawn, table))
    for part in (power(drawn, table, options.only),) if options.only else parts:
        for place, rows in groupby(part, key=lambda row: (row["table"], row.get("form"))):
            found = []
            for row in rows:
                print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
                found.append(row)
            kept &= place[0] != "size" or all(row["alarms at 0.001"] <= MOST for row in found)
            if scale is FULL:
                results.write("unknown_draft", found, command="python -m benchmarks.unknown_draft", seconds=time.perf_counter() - begun)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())

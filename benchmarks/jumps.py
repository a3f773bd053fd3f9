"""What jumps cost the sampling judge, and save: ``python -m benchmarks.jumps [power|size] [--runs N] [--only NAME] [--write]``.

Servers are simulated over a whole vocabulary, with noise in every logit, and the panel judges the same tokens twice: with a null without
jumps, and with the one that the judge takes (stats/jumps.py). ``power`` prints median tokens to an alarm by fault and drafter;
``size`` prints the highest evidence of healthy servers by numerics, at temperature .6 with drafts that are certain of one token, where a
token that noise brought pays most. Exit code 1 where a healthy run alarms, or a fault takes a tenth more tokens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from benchmarks.independent import VOCABULARY, K, made_up
from benchmarks.simulated import ANSWER_TOKENS, DISTRIBUTIONS_SEED, SEED, TOP_TOKENS
from pytest_specdec.judge.sampling.draft_distribution import certain_view, drawn_view
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.bettors import bettors
from pytest_specdec.stats.jumps import JUMP_RATE
from pytest_specdec.stats.raw_distribution import RawDistribution
from pytest_specdec.stats.token_distribution import Processing, requested
from pytest_specdec.stats.verify_slots import Observed, join_slots, slots_from_windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.stats.token_distribution import Bools, Floats, Ints

Noise = Callable[[np.random.Generator, tuple[int, int]], "Floats"]
ALPHA = 1.575e-4
"""Of one sampling workload of one variant at standard depth."""


def gaussian(deviation: float) -> Noise:
    """Return normal noise on every logit."""
    return lambda random, shape: deviation * random.normal(size=shape)


def heavy_tailed(deviation: float) -> Noise:
    """Return normal noise with one scale for each position, t-distributed with three degrees of freedom."""
    return lambda random, shape: deviation * random.standard_t(3, size=(shape[0], 1)) * random.normal(size=shape)


def flipping(rate: float) -> Noise:
    """Return noise of .02 nats, and of one nat at the share ``rate`` of positions."""
    return lambda random, shape: np.where(random.random((shape[0], 1)) < rate, 1.0, 0.02) * random.normal(size=shape)


WORLDS: dict[str, Noise] = {
    "exact": gaussian(0.0),
    "g.03": gaussian(0.03),
    "mt3.1": heavy_tailed(0.1),
    "out1e-4": flipping(1e-4),
    "out1e-3": flipping(1e-3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to be wrong at a draft slot."""

    lenience: float = 1.0
    """Factor of the acceptance probability."""
    leak: float = 0.0
    """Share of rejected drafts that is emitted all the same."""
    temperature: float = 1.0
    """Times the requested one."""
    improbable: float = 0.0
    """Share of tokens drawn evenly from the vocabulary."""


FAULTS = {
    "accept-all": Fault(leak=1.0),
    "leak 20 %": Fault(leak=0.2),
    "lenient 1.5": Fault(lenience=1.5),
    "temperature 1.05": Fault(temperature=1.05),
    "3 % drawn evenly": Fault(improbable=0.03),
}
DRAWN, CERTAIN, HIDDEN = DRAFTERS = ("drawn, known", "one-hot, known", "one-hot, hidden")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Server:
    """One server: logits of target and distribution of draft by context, its noise, and what it does wrong."""

    p: Floats
    """[C, V], raw logits."""
    q: Floats
    """[C, V], the draft's distribution."""
    noise: Noise
    fault: Fault
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spoken:
    """Answers of one run as arrays [A, T]."""

    context: Ints
    token: Ints
    windows: tuple[tuple[int, ...], ...]
    """Window lengths of each answer."""


def softmax(logits: Floats) -> Floats:
    """Return distributions of ``logits`` [N, V]."""
    mass = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))


def draw(distribution: Floats, random: np.random.Generator) -> Ints:
    """Return a token [N] from each row."""
    mass = distribution.cumsum(axis=1)
    return np.asarray((mass > random.random((len(mass), 1)) * mass[:, -1:]).argmax(axis=1), dtype=np.int64)


def speak(server: Server, random: np.random.Generator, answers: int) -> Spoken:
    """Return so many ``answers`` of ``server``, at contexts drawn evenly."""
    fault, contexts = server.fault, random.integers(len(server.p), size=(answers, ANSWER_TOKENS))
    token, slot = np.zeros_like(contexts), np.zeros(answers, dtype=np.int64)
    begins = np.ones(contexts.shape, dtype=np.bool_)
    for step in range(ANSWER_TOKENS):
        here = contexts[:, step]
        target = softmax((server.p[here] + server.noise(random, (answers, VOCABULARY))) / (server.temperature * fault.temperature))
        q = server.q[here]
        draft, verify = draw(q, random), (slot < K) & (step > 0)
        ratio = np.take_along_axis(target / np.maximum(q, 1e-300), draft[:, None], axis=1)[:, 0]
        accept = np.minimum(1.0, fault.lenience * ratio)
        accepted = verify & (random.random(answers) < accept + (1.0 - accept) * fault.leak)
        residual = np.maximum(target - q, 0.0)
        left = residual.sum(axis=1, keepdims=True)
        instead = np.where(verify[:, None] & (left > 1e-12), residual / np.maximum(left, 1e-12), target)
        emitted = np.where(accepted, draft, draw(instead, random))
        evenly = random.random(answers) < fault.improbable
        token[:, step] = np.where(evenly, random.integers(VOCABULARY, size=answers), emitted)
        begins[:, step] = slot == 0
        slot = np.where(accepted, slot + 1, 0)
    return Spoken(context=contexts, token=token, windows=tuple(_lengths(row) for row in begins))


def _lengths(begins: Bools) -> tuple[int, ...]:
    return tuple(np.diff([*np.flatnonzero(begins).tolist(), len(begins)]).tolist())


def listed(logprobs: Floats, tokens: Ints) -> RawDistribution:
    """Return what a server lists of ``logprobs`` [N, V] at the emitted ``tokens`` [N]."""
    ids = np.argsort(-logprobs, axis=1)[:, :TOP_TOKENS]
    return RawDistribution(
        ids=ids,
        logprobs=np.take_along_axis(logprobs, ids, axis=1),
        chosen=tokens,
        chosen_logprobs=np.take_along_axis(logprobs, tokens[:, None], axis=1)[:, 0],
        vocabulary=VOCABULARY,
    )


def observed(server: Server, spoken: Spoken, drafter: str, random: np.random.Generator) -> Observed:
    """Return the judge's view without jumps, scores with noise of their own."""
    rows, tokens, q = spoken.context.ravel(), spoken.token.ravel(), server.q
    count = len(rows)
    asked = Processing(temperature=np.full(count, server.temperature), top_k=np.zeros(count, dtype=np.int64), top_p=np.ones(count))
    scored = listed(np.log(softmax(server.p[rows] + server.noise(random, (count, VOCABULARY)))), tokens)
    distribution = requested(scored, asked)
    slots = join_slots([slots_from_windows(windows, ANSWER_TOKENS, lambda _: K) for windows in spoken.windows])
    seen = Observed(
        distribution=distribution,
        ids=scored.ids,
        q=None,
        drafted=np.zeros(count, dtype=np.bool_),
        slots=slots,
        k=K,
        vocabulary=VOCABULARY,
        previous=np.column_stack([np.full(len(spoken.token), -1), spoken.token[:, :-1]]).ravel(),
        contexts=np.arange(count),
    )
    if drafter == HIDDEN:
        return seen
    if drafter == CERTAIN:
        view = certain_view(q[rows].argmax(axis=1), scored.ids, distribution, tokens)
    else:
        with np.errstate(divide="ignore"):
            view = drawn_view(listed(np.log(q[rows]), tokens), np.ones(count, dtype=np.bool_), scored.ids, distribution, asked)
    return replace(
        seen,
        q=view.q,
        drafted=view.drafted,
        accepted_if_emitted=view.accepted_if_emitted,
        q_chosen=view.chosen,
        accepted_if_drafted=view.accepted_if_drafted,
        listed=view.listed,
        q_raw=view.q_raw,
    )


def both(seen: Observed) -> dict[float, Floats]:
    """Return the log wealth after every token, [N], by the rate of jumps that the null allows for."""
    rates = (0.0, JUMP_RATE)
    return {rate: mixture(bettors(replace(seen, distribution=replace(seen.distribution, jump_rate=rate))))[0] for rate in rates}


def run(drafter: str, fault: Fault, *, world: str, temperature: float, seed: list[int], answers: int) -> dict[float, Floats]:
    """Return one run's evidence after every token, by the rate of jumps."""
    random, made = np.random.default_rng([SEED, *seed]), made_up(np.random.default_rng(DISTRIBUTIONS_SEED))
    q = made.asked(temperature=temperature, certain=drafter != DRAWN).q
    server = Server(p=np.log(made.raw_p), q=q, noise=WORLDS[world], fault=fault, temperature=temperature)
    return both(observed(server, speak(server, random, answers), drafter, random))


def power(runs: int, only: str) -> Iterator[dict[str, object]]:
    """Yield median tokens to an alarm by fault and drafter, at g.03."""
    for drafter in DRAFTERS:
        for number, (name, fault) in enumerate(FAULTS.items()):
            if only not in f"{drafter}: {name}":
                continue
            seeds = ([1, DRAFTERS.index(drafter), number, one] for one in range(runs))
            found = [run(drafter, fault, world="g.03", temperature=1.0, seed=seed, answers=64) for seed in seeds]
            first = {rate: [_first(each[rate]) for each in found] for rate in found[0]}
            without, with_jumps = (float(np.median(first[rate])) for rate in (0.0, JUMP_RATE))
            yield {
                "table": "power",
                "form": f"{drafter}: {name}",
                "drafter": drafter,
                "fault": name,
                "runs": runs,
                "without jumps": _tokens(without),
                f"with one in {1 / JUMP_RATE:,.0f}": _tokens(with_jumps),
                "caught": f"{np.isfinite(first[0.0]).sum()}, {np.isfinite(first[JUMP_RATE]).sum()}",
                "kept": with_jumps <= 1.1 * without,
            }


def _first(path: Floats) -> float:
    reached = path >= -np.log(ALPHA)
    return float(reached.argmax()) + 1.0 if reached.any() else np.inf


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if np.isfinite(count) else "-"


def size(runs: int, only: str) -> Iterator[dict[str, object]]:
    """Yield the highest evidence of healthy runs at temperature .6, drafts certain of one token and known."""
    for number, world in enumerate(WORLDS):
        if only not in world:
            continue
        found = [run(CERTAIN, Fault(), world=world, temperature=0.6, seed=[2, number, one], answers=24) for one in range(runs)]
        for rate in found[0]:
            peaks = np.array([each[rate].max() for each in found])
            steps = max(float(np.diff(each[rate], prepend=0.0).max()) for each in found)
            alarms = int((peaks >= -np.log(ALPHA)).sum())
            yield {
                "table": "size",
                "form": f"{world}, {rate:g}",
                "numerics": world,
                "jumps allowed for": rate,
                "runs": runs,
                "tokens": 24 * ANSWER_TOKENS,
                "alarms": alarms,
                "highest": f"10^{peaks.max() / np.log(10):.1f}",
                "largest step": f"10^{steps / np.log(10):.1f}",
                "kept": rate == 0.0 or not alarms,
            }


def main(arguments: list[str]) -> int:
    """Measure, print, and write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jumps", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("power", "size"), default="power")
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--only", default="", help="words that the cell or the numerics hold")
    parser.add_argument("--write", action="store_true")
    options, begun, rows = parser.parse_args(arguments), time.monotonic(), []
    for row in (power if options.what == "power" else size)(options.runs, options.only):
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        rows.append(row)
    if options.write:
        results.write("jumps", rows, command="python -m benchmarks.jumps", seconds=time.monotonic() - begun)
    return 0 if all(row["kept"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

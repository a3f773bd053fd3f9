"""Near-ties: detection and size of the greedy bet: ``python -m benchmarks.near_ties [RUN] [--runs N]``.

Real positions of the reference pair (the greedy scores of a stored RUN of the suites, at standard depth) are resampled. A healthy server
takes the best token under logits that are off by noise, and so are the scores; the fault keeps a draft within w nats of the best one. The
draft is one of the listed candidates, the best as often as the reference's drafter is right. An answer has 24 tokens; in the last table one
answer of fifty has ten times the noise throughout, which the measured noise does not show.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from pytest_specdec.files import transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.stats.near_ties import MOST_OF_A_PROMPT, FlipNoise, GreedyTokens, sigma_of, wealth

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

RUN = Path(".specdec/near-ties")
ALPHA = 6.7e-6
"""The share of one greedy workload where one variant is judged at standard."""
TOKENS, MANY = 808, 3000
ANSWER = 24
"""Tokens of an answer."""
NOISY_ANSWERS, NOISIER = 0.02, 10.0
"""The share of answers that are noisier throughout in the last table, and how many times."""
TOP_TOKENS = 5
RIGHT = 0.8
"""How often no near one is drafted: at 59 near-ties of the reference pair the drafter proposes one with probability .20."""
NOISES, WIDTHS, FLOORS = (0.0, 0.01, 0.03), (0.1, 0.2, 0.25), (0.02, 0.05)


def positions(run: Path) -> Floats:
    """Return the log-probabilities [N, 5] of the best tokens at the baseline's own greedy tokens."""
    found = transcripts.read_scores(RunDirectory(run), "baseline", "baseline", "all-greedy")
    listed = [position.top_logprobs[:TOP_TOKENS] for one in found for position in one.positions]
    return np.array([top_tokens for top_tokens in listed if len(top_tokens) == TOP_TOKENS])


def simulate_run(
    rng: np.random.Generator, bank: Floats, tokens: int, noise: float, *, w: float = 0.0, tails: bool = False, uneven: bool = False
) -> GreedyTokens:
    """Return what a judge sees of one run, ``noise`` being that of one logit on either side."""
    logits = bank[rng.integers(len(bank), size=tokens)]
    answers = np.arange(tokens) // ANSWER
    noisier = np.where(rng.random(answers[-1] + 1) < NOISY_ANSWERS, NOISIER, 1.0)[answers, None] if uneven else 1.0
    server = logits + noise * noisier * _drawn(rng, logits.shape, tails=tails)
    scorer = logits + noise * _drawn(rng, logits.shape, tails=tails)
    chosen = server.argmax(axis=1)
    rows = np.arange(tokens)
    other = np.where(chosen == 1, 0, 1)
    near = (server[rows, chosen] - server[rows, other] <= w) & (rng.random(tokens) > RIGHT)
    emitted = np.where(near, other, chosen) if w else chosen
    order = np.argsort(-scorer, axis=1)
    sorted_ = np.take_along_axis(scorer, order, axis=1)
    return GreedyTokens(gaps=sorted_[:, :1] - sorted_, chosen=(order == emitted[:, None]).argmax(axis=1), prompts=answers)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], *, tails: bool) -> Floats:
    return rng.standard_t(3, shape) / math.sqrt(3.0) if tails else rng.normal(size=shape)


def cells(bank: Floats, runs: int) -> Iterator[dict[str, object]]:
    """Yield the rows of both tables."""
    rng = np.random.default_rng(8)
    for noise in NOISES:
        for w in WIDTHS:
            caught = {floor: _alarms(rng, bank, runs, noise, floor, w=w) for floor in FLOORS}
            yield {"table": f"Caught of {runs} runs of {TOKENS} tokens", "noise": noise, "kept within": w, **_named(caught)}
    for tails in (False, True):
        for tokens in (TOKENS, MANY):
            for noise in NOISES:
                caught = {floor: _alarms(rng, bank, 240, noise, floor, tokens=tokens, tails=tails) for floor in FLOORS}
                distribution = "Student's t, 3 degrees" if tails else "normal"
                yield {
                    "table": "False alarms in 240 healthy runs",
                    "noise": noise,
                    "tokens": tokens,
                    "distribution": distribution,
                    **_named(caught),
                }
    table = "Caps of a prompt's payoff: faults caught of 1,000, false alarms of 1,200 with such answers"
    for cap in (math.inf, MOST_OF_A_PROMPT, 30.0):
        yield {"table": table, "cap": cap, **_count_alarms_at_cap(bank, cap)}


def _count_alarms_at_cap(bank: Floats, cap: float) -> dict[str, object]:
    """Return the alarms of faulty and of correct servers where a prompt pays ``cap`` at most."""
    rng = np.random.default_rng(8)
    faults = [(0.0, 0.2, 0.02), (0.0, 0.2, 0.05), (0.01, 0.2, 0.05), (0.01, 0.1, 0.02), (0.03, 0.25, 0.05)]
    caught = sum(_alarms(rng, bank, 200, noise, floor, w=w, cap=cap) for noise, w, floor in faults)
    worlds = [(0.03, TOKENS, 0.02), (0.03, MANY, 0.02), (0.03, MANY, 0.05), (0.01, MANY, 0.02)]
    wrong = sum(_alarms(rng, bank, 300, noise, floor, tokens=tokens, uneven=True, cap=cap) for noise, tokens, floor in worlds)
    return {"faults caught": caught, "false alarms": wrong}


def _alarms(
    rng: np.random.Generator,
    bank: Floats,
    runs: int,
    noise: float,
    floor: float,
    *,
    tokens: int = TOKENS,
    w: float = 0.0,
    tails: bool = False,
    uneven: bool = False,
    cap: float = MOST_OF_A_PROMPT,
) -> int:
    flips = FlipNoise(sigma=sigma_of(math.sqrt(2.0) * noise, floor))
    simulated = (simulate_run(rng, bank, tokens, noise, w=w, tails=tails, uneven=uneven) for _ in range(runs))
    return sum(wealth(run, flips, cap).alarms(ALPHA) for run in simulated)


def _named(caught: dict[float, int]) -> dict[str, object]:
    return {f"floor {floor:g}": count for floor, count in caught.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, default=RUN)
    parser.add_argument("--runs", type=int, default=100)
    asked = parser.parse_args()
    began = time.monotonic()
    rows = list(cells(positions(asked.run), asked.runs))
    for row in rows:
        print(row)
    results.write("near_ties", rows, command=f"python -m benchmarks.near_ties --runs {asked.runs}", seconds=time.monotonic() - began)

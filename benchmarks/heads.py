"""Lenient acceptance under drafts that nobody reports: ``python -m benchmarks.heads [--runs N] [--only NAME] [--write]``.

Made-up heads of any quality propose their best token or draw one; the judge sees neither the draft nor its distribution. Every row has the
median tokens to an alarm of the panel, beside two bounds by Wald: with the draft's distribution known, and for the best test that sees no
draft at all, where the head's error has no direction. The latter is the divergence of the mean distribution over heads with the same
error; windows of earlier tokens can lower it only as far as they foretell the error.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import results
from benchmarks.independent import VOCABULARY, MadeUpDistributions, Server, made_up
from benchmarks.simulated import ANSWER_TOKENS, DISTRIBUTIONS_SEED, FORMS, SEED, TOP_TOKENS, observed, texts
from pytest_specdec.stats.betting import mixture
from pytest_specdec.stats.bettors import bettors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.simulated import Form
    from pytest_specdec.stats.token_distribution import Floats

ALPHA = 1.575e-4
"""Of one sampling workload of one variant at standard depth."""
LENIENCE = 1.5
ERRORS = (0.5, 0.95, 1.5, 2.2, 3.0)
"""Of the head's logits, in nats."""
LOOKS = (8, 24, 64)
"""Answers after which a run is looked at, until it alarms; every bet is on what came before, so that a look changes none."""
CONTEXTS, HEADS = 200, 200
"""Contexts and heads over which the mean distribution is taken."""


def lenient(p: Floats, q: Floats) -> Floats:
    """Return what a server emits [C, V] that accepts drafts from ``q`` with LENIENCE times the right probability."""
    accepted = q * np.minimum(1.0, LENIENCE * p / np.maximum(q, 1e-300))
    residual = np.maximum(p - q, 0.0)
    left = residual.sum(axis=1, keepdims=True)
    replacement = np.where(left > 1e-12, residual / np.maximum(left, 1e-12), p)
    return np.asarray(accepted + (1.0 - accepted.sum(axis=1, keepdims=True)) * replacement)


def divergence(m: Floats, p: Floats) -> float:
    """Return the mean divergence of ``m`` from ``p``, in nats."""
    return float(np.where(m > 0.0, m * np.log(np.maximum(m, 1e-300) / p), 0.0).sum(axis=1).mean())


def unseen(distributions: MadeUpDistributions, error: float, *, certain: bool) -> float:
    """Return the divergence, nats a draft slot, of the mean over heads on top tokens and a remainder.

    Half of the chi-square distance, from two halves of the heads so that their number adds no bias: the divergence to second order.
    """
    random, p = np.random.default_rng([SEED, round(100 * error)]), distributions.p[:CONTEXTS]
    halves = np.zeros((2, *p.shape))
    for head in range(HEADS):
        logits = np.log(p) + error * random.normal(size=p.shape)
        mass = np.exp(logits - logits.max(axis=1, keepdims=True))
        q = np.eye(VOCABULARY)[logits.argmax(axis=1)] if certain else mass / mass.sum(axis=1, keepdims=True)
        halves[head % 2] += 2.0 / HEADS * lenient(p, q)
    best = np.argsort(-p, axis=1)[:, :TOP_TOKENS]
    coarse = [np.take_along_axis(one, best, axis=1) for one in (p, *halves)]
    listed, *means = (np.column_stack([one, 1.0 - one.sum(axis=1)]) for one in coarse)
    return max(float(((means[0] - listed) * (means[1] - listed) / listed).sum(axis=1).mean()) / 2.0, 1e-9)


def row(error: float, runs: int, form: Form) -> dict[str, object]:
    """Return what is reached behind heads with one ``error``."""
    distributions = made_up(np.random.default_rng(DISTRIBUTIONS_SEED), error).asked(certain=form.certain)
    server = Server(accept=np.minimum(1.0, LENIENCE * distributions.p / np.maximum(distributions.q, 1e-300)))
    random = np.random.default_rng([SEED, round(100 * error), form.certain, form.windows])
    first = [_first(distributions, server, random, form) for _ in range(runs)]
    agree = float((distributions.raw_p.argmax(axis=1) == distributions.raw_q.argmax(axis=1)).mean())
    bounds = (divergence(lenient(distributions.p, distributions.q), distributions.p), unseen(distributions, error, certain=form.certain))
    return {
        "table": "heads",
        "form": f"{'best token' if form.certain else 'drawn'}, {'windows known' if form.windows else 'windows hidden'}, {error:g}",
        "drafts": "its best token" if form.certain else "drawn",
        "windows": "known" if form.windows else "hidden",
        "best tokens agree": f"{agree:.0%}",
        "bound, drafts known": _tokens(-np.log(ALPHA) / bounds[0]),
        "bound, no direction": _tokens(-np.log(ALPHA) / bounds[1]),
        "median": _tokens(float(np.quantile(first, 0.5, method="higher"))),
        "alarmed": f"{np.isfinite(first).sum()}/{runs}",
    }


def _first(distributions: MadeUpDistributions, server: Server, random: np.random.Generator, form: Form) -> float:
    """Return the tokens to an alarm in one run; inf where there is none."""
    ((_, text),) = texts(distributions, server, random, runs=1, tokens=LOOKS[-1] * ANSWER_TOKENS)
    for answers in LOOKS:
        part = type(text)(**{each.name: getattr(text, each.name)[:answers] for each in fields(text)})
        reached = mixture(bettors(observed(distributions, part, form)))[0] >= -np.log(ALPHA)
        if reached.any():
            return float(reached.argmax()) + 1.0
    return np.inf


def _tokens(count: float) -> str:
    return f"{count:,.0f}" if np.isfinite(count) else "-"


def rows(runs: int, only: str) -> Iterator[dict[str, object]]:
    """Yield a row for each form and quality of a head."""
    for name in ("no q, best token", "no q"):
        for windows in (True, False):
            for error in ERRORS:
                if only in f"{name}, windows {'known' if windows else 'hidden'}, {error:g}":
                    form = replace(FORMS[name], windows=windows)
                    yield row(error, runs if form.certain else max(runs // 3, 1), form)  # drafts that are drawn take whole runs


def main(arguments: list[str]) -> int:
    """Measure, print, and write with ``--write``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.heads", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--only", default="", help="words that the form holds")
    parser.add_argument("--write", action="store_true")
    options, begun, found = parser.parse_args(arguments), time.monotonic(), []
    for one in rows(options.runs, options.only):
        print(", ".join(f"{name} {value}" for name, value in one.items()), flush=True)
        found.append(one)
    if options.write:
        results.write("heads", found, command="python -m benchmarks.heads --write", seconds=time.monotonic() - begun)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Acceptance: tokens per verify step over many prompts, with limits, compared with the gates on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy.special import stdtrit

from pytest_specdec.gates.rulings import PROVEN_ERROR, GateRuling, gates_on, rule_gates
from pytest_specdec.judge.acceptance import drafter_quality as own_drafts
from pytest_specdec.judge.acceptance import stored as stored_acceptance
from pytest_specdec.judge.bursts import uncounted_bursts
from pytest_specdec.judge.prerequisites import speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH
from pytest_specdec.model.promise import AcceptedLength
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.gates.rulings import RuledGate
    from pytest_specdec.judge.acceptance.stored import Comparison
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import SpecCounters, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["LEAST_PROMPTS", "AcceptanceLength", "acceptance_length", "describe_length", "judge_acceptance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per verify step, the bonus or recovered token included."""

    tokens: float
    standard_error: float | None
    """Of its log, over prompts, which are its independent units; None if steps are known of fewer than two prompts."""
    prompts: int
    """Prompts whose verify steps the server reported."""

    def at_least(self, error: float) -> float:
        """Return the lower confidence limit of the true length.

        The true length is below it with probability ``error``. Returns 0 without a standard error.
        """
        return 0.0 if self.standard_error is None else self.tokens * math.exp(-self._half_width(error))

    def at_most(self, error: float) -> float:
        """Return the upper confidence limit of the true length.

        The true length is above it with probability ``error``. Returns infinity without a standard error.
        """
        return math.inf if self.standard_error is None else self.tokens * math.exp(self._half_width(error))

    def _half_width(self, error: float) -> float:
        return -float(stdtrit(self.prompts - 1, error)) * (self.standard_error or 0.0)


def acceptance_length(transcript: Transcript) -> AcceptanceLength | None:
    """Return tokens per verify step, over all prompts together.

    It is the ratio r = T / S of all tokens to all verify steps of the answers, steps without a draft included. The variance of its log is n
    / (n - 1) sum (t_i - r s_i)^2 / T^2 over n prompts (Cochran, Sampling Techniques, 3rd edition, section 6.4), with Student's t of n - 1
    degrees of freedom. Prompts are the units because steps of one prompt depend on each other: as independent units they give 12 to 18 %
    false alarms at nominal 1 %. If the answers show no steps, the server's counters are used, which leave out steps without a draft and
    give no limits. Returns None without either.
    """
    sums = [(each.tokens, each.steps) for each in stored_acceptance.totals(transcript).values()]
    if sums:
        return _over_prompts(sums)
    counters = transcript.counters
    if counters is None or not counters.drafts:
        return None
    return AcceptanceLength(tokens=counters.mean_acceptance_length, standard_error=None, prompts=0)


def _over_prompts(sums: list[tuple[int, int]]) -> AcceptanceLength:
    """Return the length and its error from (tokens, steps) of each prompt.

    The error is None for a single prompt.
    """
    tokens, steps, count = sum(t for t, _ in sums), sum(s for _, s in sums), len(sums)
    ratio = tokens / steps
    if count == 1:
        return AcceptanceLength(tokens=ratio, standard_error=None, prompts=1)
    squares = math.fsum((t - ratio * s) ** 2 for t, s in sums)
    return AcceptanceLength(tokens=ratio, standard_error=math.sqrt(count / (count - 1) * squares) / tokens, prompts=count)


_MANY_DRAFTS = 200
_HARDLY = 0.01
"""Accepted tokens per verify step with a draft, over at least _MANY_DRAFTS of them, below which no drafter works: the poorest real one
measured, a cache of n-grams, has 0.08."""
LEAST_PROMPTS = 20
"""Prompts that a gate needs: the length of one prompt says little about that of the next."""


def judge_acceptance(captured: Captured) -> Verdict:
    """Return the verdict on the number of accepted tokens.

    They are compared with the gates, with the stored run, and with the tokens that the drafter would get right if it were served alone. The
    control passes, since it drafts nothing.
    """
    if captured.is_control:
        return say(captured, Outcome.PASS, "the baseline drafts nothing")
    length = acceptance_length(captured.speculative)
    drafts = own_drafts.own_drafts(captured)
    alpha = captured.alpha / max(1, _count_tests(captured) + (drafts is not None))
    return (
        speculating(captured, rejecting=False)
        or _check_accepted(captured)
        or own_drafts.worse(captured, drafts, alpha)
        or _judge_gates(captured, length, alpha)
    )


def _count_tests(captured: Captured) -> int:
    """Count the tests of a length: against the gates, and against the stored run."""
    return bool(gates_on(captured.gates, ACCEPTANCE_LENGTH)) + any(gate.lengths for gate in captured.gates)


def _check_accepted(captured: Captured) -> Verdict | None:
    """Return NOT_SPECULATING if hardly any draft token is accepted, else None.

    A random drafter would do as well.
    """
    counters = captured.speculative.counters
    if counters is None or counters.drafts < _MANY_DRAFTS or counters.accepted_tokens >= _HARDLY * counters.drafts:
        return None
    accepted = f"{counters.accepted_tokens:,} draft tokens accepted in {counters.drafts:,} verify steps"
    return say(
        captured,
        Outcome.NOT_SPECULATING,
        f"hardly any draft token accepted in the judged requests ({accepted})",
        short=("likely: draft and target do not match (vocabulary, template, quantisation), or the drafter reads the wrong state",),
        evidence=(f"counters over these answers: {accepted}",),
        cell="not speculating",
        figures={"drafts": float(counters.drafts), "accepted_tokens": float(counters.accepted_tokens)},
    )


def _judge_gates(captured: Captured, length: AcceptanceLength | None, alpha: float) -> Verdict:
    """Return the verdict by the gates and by the stored run, each at ``alpha``.

    The gates stay open if the length is over fewer than LEAST_PROMPTS prompts.
    """
    gates = gates_on(captured.gates, ACCEPTANCE_LENGTH)
    rulings = rule_gates(gates, length if length and length.prompts >= LEAST_PROMPTS else None, alpha)
    comparison = stored_acceptance.compare_with_stored(captured, alpha)
    outcome, why = _ruling(length, rulings, comparison)
    return _say_length(captured, length, rulings, comparison, outcome=outcome, why=why)


def _ruling(length: AcceptanceLength | None, rulings: Sequence[RuledGate], comparison: Comparison | None) -> tuple[Outcome, str]:
    """Return the outcome and the reason for it.

    A missed gate comes first, then a change against the stored run; a pass needs every gate and the comparison to be decided.
    """
    missed = [one.gate for one in rulings if one.ruling is GateRuling.MISSED]
    if missed:
        return Outcome.FAIL, f"gate missed: {missed[0]}"
    if comparison is not None and comparison.outcome is Outcome.FAIL:
        return Outcome.FAIL, comparison.sentence
    if any(one.ruling is GateRuling.OPEN for one in rulings):
        open_ = next(one.gate for one in rulings if one.ruling is GateRuling.OPEN)
        return Outcome.NOT_DECIDED, f"{_why_open(length, open_)}: {open_}"
    if comparison is not None and comparison.outcome is Outcome.NOT_DECIDED:
        return Outcome.NOT_DECIDED, comparison.sentence
    met = [f"gate met: {' and '.join(str(one.gate) for one in rulings)}"] if rulings else []
    return Outcome.PASS, "; ".join([*met, *([comparison.sentence] if comparison else [])]) or "no gate set"


def _why_open(length: AcceptanceLength | None, gate: Gate) -> str:
    """Return the reason for an undecided gate, in words."""
    if length is None or not length.prompts:
        return "the answers show no verify steps, so the gate is open"
    if length.prompts < LEAST_PROMPTS:
        return f"{length.prompts} prompts are too few for the gate, {LEAST_PROMPTS} needed"
    if length.at_most(PROVEN_ERROR) < (gate.at_least or 0.0):
        return "the interval is below the gate, but not surely enough to fail"
    return "the interval contains the gate"


def _settle(length: AcceptanceLength | None, rulings: Sequence[RuledGate], comparison: Comparison | None) -> str:
    """Return the remedy for a comparison or gate left undecided, in words."""
    if comparison is not None and all(one.ruling is GateRuling.PROVEN for one in rulings):
        return comparison.settle
    if length is None or not length.prompts:
        return "a server that reports the verify steps of each answer"
    if length.prompts < LEAST_PROMPTS:
        return f"{LEAST_PROMPTS} prompts or more (--specdec-depth standard)"
    return f"more prompts, or a gate of at most {length.at_least(PROVEN_ERROR):.2f}"


def describe_length(length: AcceptanceLength | None) -> str:
    """Return the length with its limits, as in ``3.08 [2.91, 3.26] tokens per step``."""
    if length is None:
        return "unknown tokens per step"
    known = length.standard_error is not None
    limits = f" [{length.at_least(PROVEN_ERROR):.2f}, {length.at_most(PROVEN_ERROR):.2f}]" if known else ""
    return f"{length.tokens:.2f}{limits} tokens per step"


def _by_bursts(captured: Captured) -> str:
    """Return the estimated length by bursts in a probe's streams, in words.

    No gate is compared with it, since the probe's requests are other ones than the judged.
    """
    streams = uncounted_bursts(captured)
    return describe_length(None) if streams is None else f"about {streams.tokens_per_step:.2f} tokens per step, by bursts"


def _say_length(
    captured: Captured,
    length: AcceptanceLength | None,
    rulings: Sequence[RuledGate],
    comparison: Comparison | None,
    *,
    outcome: Outcome,
    why: str,
) -> Verdict:
    """Return a verdict on the accepted length, with its lines and figures."""
    over = 0 if length is None else length.prompts
    drafted = captured.pair.variant.draft.tokens
    limits = f"interval: 95%, Student's t over {over} prompts; {drafted or 'an unknown number of'} draft tokens per step"
    alone = own_drafts.own_drafts(captured)
    lines = [*map(str, rulings), limits, *_describe_counters(captured.speculative.counters), *([f"drafter: {alone}"] if alone else [])]
    is_red = comparison is not None and comparison.outcome is Outcome.FAIL
    measured = describe_length(length) if length else _by_bursts(captured)
    return say(
        captured,
        outcome,
        f"{measured}; {why}",
        short=(*(comparison.short if comparison else ()), *lines),
        evidence=(*(comparison.lines if comparison else ()), *lines),
        rules_out=_rules_out(over, rulings, comparison) if outcome is Outcome.PASS else "",
        settle=_settle(length, rulings, comparison) if outcome is Outcome.NOT_DECIDED else "",
        reason=why if outcome is Outcome.NOT_DECIDED else "",
        cell=measured,
        names=comparison.finding.value if comparison and is_red else "",
        promise=AcceptedLength(tokens_per_step=length.tokens, prompts=length.prompts) if length else None,
        finding=comparison.finding if comparison else None,
        figures={**_acceptance_figures(length), **(comparison.figures if comparison else {})},
    )


def _rules_out(prompts: int, rulings: Sequence[RuledGate], comparison: Comparison | None) -> str:
    proven = [one.low for one in rulings if one.ruling is GateRuling.PROVEN]
    parts = [f"fewer than {min(proven):.2f} tokens per step would have been caught (97.5%)"] if proven else []
    against = comparison.rules_out if comparison else ""
    claims = [*parts, *([against] if against else [])]
    return f"{prompts} prompts; {'; '.join(claims)}" if claims else ""


def _describe_counters(counters: SpecCounters | None) -> list[str]:
    """Return a line with the server's own mean acceptance length.

    It is larger than the measured length, since it leaves out steps without a draft. Empty without counters.
    """
    if counters is None or not counters.drafts:
        return []
    return [f"server counters: {counters.mean_acceptance_length:.2f} tokens per step with a draft"]


def _acceptance_figures(length: AcceptanceLength | None) -> dict[str, float]:
    if length is None:
        return {}
    figures = {"acceptance_length": length.tokens, "prompts": float(length.prompts)}
    if length.standard_error is None:
        return figures
    return {**figures, "acceptance_length_low": length.at_least(PROVEN_ERROR), "acceptance_length_high": length.at_most(PROVEN_ERROR)}

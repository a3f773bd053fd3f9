"""Acceptance: tokens per verify step over many prompts, with limits, compared with the gates on it.

This accepted length counts all steps. A gate states the least length that passes. A golden floor is a gate from another project's file,
which counts only steps with a draft. A stored run is an earlier one in a baseline file. A ruling calls a gate MISSED, PROVEN or OPEN by the
length's confidence limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.gates.rulings import PROVEN_ERROR, GateRuling, gates_on, rule_gates
from pytest_specdec.judge.acceptance import stored as stored_acceptance
from pytest_specdec.judge.acceptance.drafter_quality import check_drafter_quality, rejected_drafts
from pytest_specdec.judge.acceptance.golden import BELOW_GOLDEN, TO_CHANGE, compare_with_golden
from pytest_specdec.judge.acceptance.length import acceptance_length, describe_length
from pytest_specdec.judge.bursts import uncounted_bursts
from pytest_specdec.judge.prerequisites import speculating
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH
from pytest_specdec.model.promise import AcceptedLength
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.gates.rulings import RuledGate
    from pytest_specdec.judge.acceptance.drafter_quality import RejectedDrafts
    from pytest_specdec.judge.acceptance.golden import GoldenComparison
    from pytest_specdec.judge.acceptance.length import AcceptanceLength
    from pytest_specdec.judge.acceptance.stored import StoredComparison
    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.spec_counters import SpecCounters
    from pytest_specdec.model.verdict import Verdict

__all__ = ["LEAST_PROMPTS", "judge_acceptance"]


_MANY_DRAFTS = 200
_HARDLY = 0.01
"""Accepted tokens per verify step with a draft, over at least _MANY_DRAFTS of them, below which no drafter works: the poorest real one
measured, a cache of n-grams, has 0.08."""
LEAST_PROMPTS = 20
"""Prompts that a gate needs: the length of one prompt says little about that of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparisons:
    """The accepted length of one workload, beside what it is compared with."""

    length: AcceptanceLength | None
    stored: StoredComparison | None
    golden: GoldenComparison | None
    drafts: RejectedDrafts | None

    def length_for(self, gate: Gate) -> AcceptanceLength | None:
        """Return the length as ``gate`` counts steps; None if unknown."""
        return self.golden.length if gate.golden is not None and self.golden is not None else self.length


def judge_acceptance(captured: Captured) -> Verdict:
    """Return the verdict on the accepted length of one workload.

    The control passes, since it drafts nothing. NOT_SPECULATING if nothing is drafted, or hardly any draft token is accepted. Then FAIL if
    the drafter served alone would have avoided too many rejections, a gate or golden floor is missed, or the length changed against the
    stored run; NOT_DECIDED if a gate or that change stays open, else PASS. All of these tests share ``captured.alpha``.
    """
    if captured.is_control:
        return say(captured, Outcome.PASS, "the baseline drafts nothing")
    golden, drafts = compare_with_golden(captured), rejected_drafts(captured)
    alpha = captured.alpha / max(1, _count_tests(captured, golden) + (drafts is not None))
    return (
        speculating(captured, needs_rejections=False)  # drafts that are all accepted are no lack
        or _check_accepted(captured)
        or check_drafter_quality(captured, drafts, alpha)
        or _judge_length(captured, golden, drafts, alpha)
    )


def _count_tests(captured: Captured, golden: GoldenComparison | None) -> int:
    """Return the number of tests sharing the judgement's alpha.

    There is one of all gates, one of the golden floor and one against the stored run, each only if there is such a thing.
    """
    return (
        bool(gates_on(captured.gates, ACCEPTANCE_LENGTH))
        + (golden is not None and not golden.not_gated)
        + any(gate.lengths for gate in captured.gates)
    )


def _check_accepted(captured: Captured) -> Verdict | None:
    """Return NOT_SPECULATING if hardly any draft token is accepted, else None.

    That is fewer than _HARDLY per verify step, over _MANY_DRAFTS steps with a draft or more: a drafter of random tokens would do as well.
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


def _judge_length(captured: Captured, golden: GoldenComparison | None, drafts: RejectedDrafts | None, alpha: float) -> Verdict:
    """Return the verdict by the gates, a golden file and the stored run.

    Each is tested at ``alpha``; without any the length is only reported. Gates stay open if it was measured over too few prompts.
    """
    length, stored = acceptance_length(captured.speculative, captured.workload), stored_acceptance.compare_with_stored(captured, alpha)
    measured = _Comparisons(length=length, stored=stored, golden=golden, drafts=drafts)
    rulings = rule_gates(gates_on(captured.gates, ACCEPTANCE_LENGTH), _sufficient(length), alpha)
    # A golden floor is for the length over steps with a draft alone; for sampled answers, say, it is shown and not gated.
    if golden is not None and not golden.not_gated:
        rulings += rule_gates((golden.gate,), _sufficient(golden.length), alpha)
    outcome, why = _decide(measured, rulings)
    return _say_length(captured, measured, rulings, outcome=outcome, why=why)


def _sufficient(length: AcceptanceLength | None) -> AcceptanceLength | None:
    """Return ``length``; None if it is over too few prompts to decide a gate."""
    return length if length is not None and length.prompts >= LEAST_PROMPTS else None


def _decide(measured: _Comparisons, rulings: Sequence[RuledGate]) -> tuple[Outcome, str]:
    """Return the outcome by all comparisons, and the reason for it.

    A missed gate comes first, then a change against the stored run, then whatever is open: PASS needs every gate and that comparison to be
    decided.
    """
    comparison = measured.stored
    missed, open_ = _first_gate(rulings, GateRuling.MISSED), _first_gate(rulings, GateRuling.OPEN)
    if missed is not None:
        return Outcome.FAIL, f"gate missed: {missed}"
    if comparison is not None and comparison.outcome is Outcome.FAIL:
        return Outcome.FAIL, comparison.sentence
    if open_ is not None:
        return Outcome.NOT_DECIDED, f"{_why_open(measured.length_for(open_), open_)}: {open_}"
    if comparison is not None and comparison.outcome is Outcome.NOT_DECIDED:
        return Outcome.NOT_DECIDED, comparison.sentence
    met = [f"gate met: {' and '.join(str(ruled.gate) for ruled in rulings)}"] if rulings else []
    return Outcome.PASS, "; ".join([*met, *([comparison.sentence] if comparison else [])]) or "no gate set"


def _first_gate(rulings: Sequence[RuledGate], ruling: GateRuling) -> Gate | None:
    return next((ruled.gate for ruled in rulings if ruled.ruling is ruling), None)


def _why_open(length: AcceptanceLength | None, gate: Gate) -> str:
    """Return the reason for an undecided gate, in words.

    ``length`` is the one that the gate is on; None if unknown.
    """
    if length is None or not length.prompts:
        # A golden floor is for steps with a draft alone.
        lacking = "show no verify steps" if gate.golden is None else "do not show which verify steps had a draft"
        return f"the answers {lacking}, so the gate is open"
    if length.prompts < LEAST_PROMPTS:
        return f"{length.prompts} prompts are too few for the gate, {LEAST_PROMPTS} needed"
    # The interval in reports, 2.5 % on each side, ends here. A gate fails only if the limit at alpha, which is higher, is below it too.
    end_of_interval = length.at_most(PROVEN_ERROR)
    if end_of_interval < (gate.at_least or 0.0):
        return "the interval is below the gate, but not surely enough to fail"
    return "the interval contains the gate"


def _settle(measured: _Comparisons, rulings: Sequence[RuledGate]) -> str:
    """Return the remedy for a gate or comparison left undecided, in words.

    It is for the first open gate, or else for the comparison with the stored run. Callers ensure that one of them is undecided.
    """
    open_ = _first_gate(rulings, GateRuling.OPEN)
    if measured.stored is not None and open_ is None:
        return measured.stored.remedy
    length = measured.length if open_ is None else measured.length_for(open_)
    if length is None or not length.prompts:
        drafted = " and their draft tokens" if open_ is not None and open_.golden is not None else ""
        return f"a server that reports the verify steps of each answer{drafted}"
    if length.prompts < LEAST_PROMPTS:
        return f"{LEAST_PROMPTS} prompts or more (--specdec-depth standard)"
    return f"more prompts, or a gate of at most {length.at_least(PROVEN_ERROR):.2f}"


def _estimate_by_bursts(captured: Captured) -> str:
    """Return the accepted length estimated from a probe's streams, in words.

    It is for servers that report no verify steps: tokens that arrive in one burst are taken for one step. No gate is compared with the
    estimate, since the capability probe sends other requests than the judged ones.
    """
    streams = uncounted_bursts(captured)
    return describe_length(None) if streams is None else f"about {streams.tokens_per_step:.2f} tokens per step, by bursts"


def _say_length(captured: Captured, measured: _Comparisons, rulings: Sequence[RuledGate], *, outcome: Outcome, why: str) -> Verdict:
    """Return a verdict on the accepted length, with its lines and figures.

    ``outcome`` was decided by the ``rulings`` on gates and by the comparisons; ``why`` is the reason for it.
    """
    length, comparison, golden = measured.length, measured.stored, measured.golden
    prompts = 0 if length is None else length.prompts
    name = _fault_name(comparison, rulings)
    lines = _list_lines(captured, measured, rulings, name)
    cell = describe_length(length) if length else _estimate_by_bursts(captured)
    caveat = f"; {golden.caveat}" if golden and golden.caveat else ""
    return say(
        captured,
        outcome,
        f"{_describe_lengths(measured, cell)}; {why}{caveat}",
        short=(*(comparison.short if comparison else ()), *lines),
        evidence=(*(comparison.lines if comparison else ()), *lines),
        rules_out=_describe_ruled_out(prompts, rulings, comparison) if outcome is Outcome.PASS else "",
        settle=_settle(measured, rulings) if outcome is Outcome.NOT_DECIDED else "",
        reason=why if outcome is Outcome.NOT_DECIDED else "",
        cell=cell,
        names=name,
        promise=AcceptedLength(tokens_per_step=length.tokens, prompts=length.prompts) if length else None,
        finding=comparison.finding if comparison else None,
        figures={**_acceptance_figures(length), **(comparison.figures if comparison else {}), **(golden.figures if golden else {})},
    )


def _list_lines(captured: Captured, measured: _Comparisons, rulings: Sequence[RuledGate], name: str) -> list[str]:
    """Return the lines of a verdict on gates, golden floor, drafts and counters.

    ``name`` is the fault's; for a missed golden floor a line says how to change it. A stored run has lines of its own.
    """
    prompts = 0 if measured.length is None else measured.length.prompts
    interval = f"interval: 95%, Student's t over {prompts} prompts; " if prompts else ""
    return [
        *map(str, rulings),
        *(measured.golden.lines if measured.golden else ()),
        *([TO_CHANGE] if name == BELOW_GOLDEN else []),
        f"{interval}{captured.pair.variant.draft.tokens or 'an unknown number of'} draft tokens per step",
        *_describe_counters(captured.speculative.counters),
        *([f"drafter: {measured.drafts}"] if measured.drafts else []),
    ]


def _fault_name(comparison: StoredComparison | None, rulings: Sequence[RuledGate]) -> str:
    """Return the name of the fault, by golden floor or stored run.

    Empty if neither fails: a missed gate of another kind names no fault.
    """
    if any(ruled.ruling is GateRuling.MISSED and ruled.gate.golden is not None for ruled in rulings):
        return BELOW_GOLDEN
    return comparison.finding.value if comparison is not None and comparison.outcome is Outcome.FAIL else ""


def _describe_lengths(measured: _Comparisons, cell: str) -> str:
    """Return the accepted length in words, or both lengths if they differ.

    ``cell`` is the length over all steps. The length over steps with a draft follows if a golden floor decides by it and the two differ.
    """
    drafted = measured.golden.length if measured.golden is not None and not measured.golden.not_gated else None
    if drafted is None or measured.length is None or f"{drafted.tokens:.2f}" == f"{measured.length.tokens:.2f}":
        return cell
    return f"{cell}, {drafted.tokens:.2f} per step with a draft"


def _describe_ruled_out(prompts: int, rulings: Sequence[RuledGate], comparison: StoredComparison | None) -> str:
    """Return the lengths and losses that a pass rules out, in words.

    The length is the least lower limit (97.5 %) of a proven gate. Empty if no gate is proven and the comparison with the stored run rules
    nothing out.
    """
    proven = [ruled.low for ruled in rulings if ruled.ruling is GateRuling.PROVEN]
    claims = [f"fewer than {min(proven):.2f} tokens per step would have been caught (97.5%)"] if proven else []
    claims += [comparison.rules_out] if comparison and comparison.rules_out else []
    return f"{prompts} prompts; {'; '.join(claims)}" if claims else ""


def _describe_counters(counters: SpecCounters | None) -> list[str]:
    """Return a line with the server's own mean acceptance length.

    It may be larger than the measured length, since it leaves out steps without a draft. Empty without counters.
    """
    if counters is None or not counters.drafts:
        return []
    return [f"server counters: {counters.mean_acceptance_length:.2f} tokens per step with a draft"]


def _acceptance_figures(length: AcceptanceLength | None) -> dict[str, float]:
    """Return the accepted length and its limits for machines, by name."""
    if length is None:
        return {}
    figures = {"acceptance_length": length.tokens, "prompts": float(length.prompts)}
    if length.standard_error is None:
        return figures
    return {**figures, "acceptance_length_low": length.at_least(PROVEN_ERROR), "acceptance_length_high": length.at_most(PROVEN_ERROR)}

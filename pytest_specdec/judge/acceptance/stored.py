"""Stored acceptance: the accepted lengths of this run compared with those in a baseline file, request by request.

An accepted length is the tokens per verify step. A gate may carry the lengths of earlier runs of the same variant from a baseline file:
these are the stored run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.judge.acceptance.length import totals
from pytest_specdec.model.baseline import ACCEPTANCE_LENGTH, LEAST_SHARED, NOT_COMPARABLE, PromptLength
from pytest_specdec.model.verdict import Finding, Outcome
from pytest_specdec.stats.acceptance_change import MARGIN, POWER, compare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.model.baseline import Gate
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.model.workload import Workload
    from pytest_specdec.stats.acceptance_change import AcceptanceChange

__all__ = ["LEAST_SHARED", "StoredComparison", "compare_with_stored", "depends_on_load", "lengths"]

_SHOWN = 3
_ROUNDING = 1e-6
"""Taken off before rounding up, for errors of floats: a loss of just the margin has to read 3.0 %, not 3.1 %."""


_OUTCOMES = {
    Finding.WORSE: Outcome.FAIL,
    Finding.MORE: Outcome.FAIL,
    Finding.SAME: Outcome.PASS,
    Finding.BY_LOAD: Outcome.PASS,
}
_CAUSES = {
    Finding.WORSE: "likely: the drafter's cache, positions, weights or template changed, or the target's answers: see greedy and sampling",
    Finding.MORE: "likely: draft tokens are accepted that were refused before, or the drafter got better: see greedy and sampling",
}
_ACCEPT = 'if it is meant: --specdec-update-baselines --specdec-accept-regression "why"'


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredComparison:
    """The accepted lengths of one workload, compared with its stored runs."""

    finding: Finding
    gate: Gate
    load: str
    """Temperature and requests in flight, in words: ``temperature 0, 24 at once``."""
    alpha: float
    shared: int = 0
    """Prompts in both runs."""
    change: AcceptanceChange | None = None
    furthest: tuple[str, ...] = ()
    """The requests with the largest changes of length."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the verdict by this finding."""
        return _OUTCOMES.get(self.finding, Outcome.NOT_DECIDED)

    @property
    def sentence(self) -> str:
        """The finding with its figures, or with the reason against a comparison."""
        if self.finding is Finding.OTHER_SETTING:
            # The finding's words end in "it had another": the parts that differ follow.
            return f"{self.finding} {'; '.join(c for c in self.gate.changes if c.startswith(NOT_COMPARABLE))} ({self.gate.source})"
        if self.finding is Finding.FEW:
            return f"{self.finding}: {self.shared} are in both, {LEAST_SHARED} needed"
        if self.change is None:
            return f"{self.finding} ({self.gate.source})"
        lengths_text = f"{self.change.stored:.2f} -> {self.change.now:.2f} tokens per step"
        return f"{self.finding}: {lengths_text}, {self.change.relative:+.1%} over {self.shared} prompts at {self.load}"

    @property
    def rules_out(self) -> str:
        """The loss that would have been caught; empty unless the lengths are the same.

        With few prompts, short answers, or little acceptance to lose, even a loss of all acceptance may be missed: the text then says so.
        """
        if self.finding is not Finding.SAME or self.change is None:
            return ""
        if not self._caught_loss:
            return "even a loss of all acceptance against the stored run may be missed"
        return f"an acceptance loss of {self._caught_loss} against the stored run would have been caught ({POWER:.0%})"

    @property
    def remedy(self) -> str:
        """What would settle a comparison that decides nothing, in words."""
        if self.finding in {Finding.OTHER_REQUESTS, Finding.OTHER_SETTING}:
            return "measure again: --specdec-update-baselines"
        if self.change is None:
            return f"{LEAST_SHARED} prompts with known verify steps in both runs (--specdec-depth standard)"
        sensitivity = f"a loss of {self._caught_loss} is found" if self._caught_loss else "even a loss of all acceptance may be missed"
        return f"more runs in the baseline file or a greater depth: here {sensitivity}"

    @property
    def short(self) -> tuple[str, ...]:
        """The first lines of a failure, with its likely cause; empty otherwise."""
        return (*self.lines[:1], _CAUSES[self.finding], _ACCEPT) if self.finding in _CAUSES else ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The evidence: the change, both lengths, the least loss caught, the requests with the largest changes, and the changed settings.

        Without a comparison of lengths it is the finding alone, and what changed since the stored run.
        """
        since = (f"since the stored run: {'; '.join(self.gate.changes)}",) if self.gate.changes else ()
        if self.change is None:
            return (self.sentence, *since)
        runs = f"{self.gate.runs} stored run{'s' * (self.gate.runs != 1)} ({self.gate.source})"
        change, loss = self.change.relative, f"a loss of {self._caught_loss}" if self._caught_loss else "no loss"
        # The limits are at 95 %, as in all reports; the test is at ``alpha``, half of it for a loss and half for a gain.
        limits = f"[{self.change.at_least(0.025):+.1%}, {self.change.at_most(0.025):+.1%}]"
        return (
            f"against the stored run: {change:+.1%} {limits}, 95%, Student's t over {self.shared} prompts; allowed: {MARGIN:.0%}",
            f"stored {self.change.stored:.2f}, now {self.change.now:.2f} tokens per step, mean of the prompts; {runs}",
            f"{loss} is found with probability {POWER:g}, each tail at {self.alpha / 2.0:.3g}",
            *([f"furthest: {', '.join(self.furthest)}"] if self.furthest else []),
            *since,
        )

    @property
    def figures(self) -> Mapping[str, float]:
        """The numbers by name; empty without a comparison of lengths.

        The limits of the change are at 95 %, as in all reports; ``detectable_acceptance_loss`` is for the test at ``alpha``.
        """
        if self.change is None:
            return {}
        loss = self._least_caught_loss
        return {
            "stored_acceptance_length": self.change.stored,
            "acceptance_change": self.change.relative,
            "acceptance_change_low": self.change.at_least(0.025),
            "acceptance_change_high": self.change.at_most(0.025),
            **({} if loss is None else {"detectable_acceptance_loss": loss}),
            "shared_prompts": float(self.shared),
        }

    @property
    def _least_caught_loss(self) -> float | None:
        """The smallest relative loss found with probability POWER by the test at ``alpha``; None if there is none."""
        if self.change is None:
            return None
        loss = self.change.detectable(self.alpha)
        # No loss is larger than that of all acceptance, one token per step: a test that needs a larger one may miss any.
        return loss if loss <= self.change.largest_loss else None

    @property
    def _caught_loss(self) -> str:
        """The smallest loss caught in percent, rounded up to a tenth but for errors of floats; empty if there is none."""
        loss = self._least_caught_loss
        return "" if loss is None else f"{math.ceil(1000.0 * loss - _ROUNDING) / 1000.0:.1%}"


def compare_with_stored(captured: Captured, alpha: float) -> StoredComparison | None:
    """Return the comparison of the captured lengths with the stored ones.

    Lengths are tokens per verify step. Only requests that both runs sent with equal id, route and body are compared: one run may have sent
    more of them than the other. Where nothing can be compared, the finding is the reason. The change is reported but not judged if drafting
    depends on the load. Returns None if no lengths are stored for this variant and workload.
    """
    gate = next((gate for gate in captured.gates if gate.figure == ACCEPTANCE_LENGTH and gate.lengths), None)
    if gate is None:
        return None
    now = lengths(captured.speculative, captured.workload)
    shared = [key for key, length in gate.lengths.items() if key in now and now[key].request == length.request]
    # Requests with the same prompt are one unit, since they depend on each other.
    units, load = _group_by_prompt(captured, shared), _describe_load(captured)
    if not gate.comparable:  # the model, the draft or the dtype is another one
        return StoredComparison(finding=Finding.OTHER_SETTING, gate=gate, load=load, alpha=alpha)
    # No request is the same as a stored one. Without verify steps in this run ``now`` is empty and does not tell: the finding is then FEW.
    are_others = bool(now) and not units
    if gate.digest != captured.workload.traffic_digest or are_others:
        return StoredComparison(finding=Finding.OTHER_REQUESTS, gate=gate, load=load, alpha=alpha)
    if len(units) < LEAST_SHARED:
        return StoredComparison(finding=Finding.FEW, gate=gate, load=load, alpha=alpha, shared=len(units))
    change = compare([_mean(gate.lengths, ids) for ids in units], [_mean(now, ids) for ids in units])
    return StoredComparison(
        finding=Finding.BY_LOAD if depends_on_load(captured) else _classify(change, alpha),
        gate=gate,
        load=load,
        alpha=alpha,
        shared=len(units),
        change=change,
        furthest=_furthest(gate.lengths, now, units),
    )


def _classify(change: AcceptanceChange, alpha: float) -> Finding:
    """Return the finding on a change of length.

    It is WORSE or MORE if the change is larger than the margin beyond chance, at ``alpha``. Otherwise it is SAME if the measured change is
    within the margin, and MAYBE_WORSE or MAYBE_MORE if not.
    """
    if change.is_lower(alpha):
        return Finding.WORSE
    if change.is_higher(alpha):
        return Finding.MORE
    if abs(change.relative) <= MARGIN:
        return Finding.SAME
    return Finding.MAYBE_WORSE if change.relative < 0.0 else Finding.MAYBE_MORE


def depends_on_load(captured: Captured) -> bool:
    """Return True if the variant may draft less with this many requests in flight."""
    return captured.pair.variant.draft.depends_on(captured.workload.concurrency)


def _describe_load(captured: Captured) -> str:
    """Return temperatures, 1 where unstated, and requests in flight, in words."""
    stated = [request.body.get("temperature") for request in captured.workload.requests]
    temperatures = sorted({f"{value:g}" if isinstance(value, int | float) else "1" for value in stated})
    return f"temperature {' and '.join(temperatures)}, {captured.workload.concurrency} at once"


def lengths(transcript: Transcript, workload: Workload) -> Mapping[str, PromptLength]:
    """Return the mean accepted length of each request of ``workload``, by id.

    Requests are left out if the server reported no verify steps for them.
    """
    digests = {request.id: request.digest for request in workload.requests}
    return {
        request_id: PromptLength(tokens_per_step=total.length, steps=total.steps, request=digests[request_id])
        for request_id, total in totals(transcript).items()
        if request_id in digests
    }


def _group_by_prompt(captured: Captured, shared: Sequence[str]) -> list[list[str]]:
    """Return the ``shared`` request ids, grouped by equal prompts."""
    prompts = {request.id: request.prompt_key for request in captured.workload.requests}
    by_prompt: defaultdict[str, list[str]] = defaultdict(list)
    for request_id in shared:
        by_prompt[prompts.get(request_id, request_id)].append(request_id)
    return list(by_prompt.values())


def _mean(lengths: Mapping[str, PromptLength], ids: Sequence[str]) -> float:
    return math.fsum(lengths[request_id].tokens_per_step for request_id in ids) / len(ids)


def _furthest(stored: Mapping[str, PromptLength], now: Mapping[str, PromptLength], units: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the prompts with the largest changes of length, in words.

    ``units`` has the request ids of each prompt; a prompt has the name of its first request. At most three are returned, and no unchanged
    one.
    """
    means = [(ids[0], _mean(stored, ids), _mean(now, ids)) for ids in units]
    means.sort(key=lambda prompt: abs(prompt[2] - prompt[1]), reverse=True)
    return tuple(f"{request_id} {before:.2f} -> {after:.2f}" for request_id, before, after in means[:_SHOWN] if before != after)

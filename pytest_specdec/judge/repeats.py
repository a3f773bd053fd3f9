"""Repeats: what an arm's answers to the same request show of its state, by wrong tokens, accepted drafts and cached tokens.

An arm is one server of a run: the baseline does not speculate, the control is the baseline booted again, ``captured.speculative`` is the
arm under judgement. A verify step emits the draft tokens that it accepts and one more; its window is their number. An answer's ``steps``
are its windows without the prefill's and the last one, which a limit may have cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from pytest_specdec.judge.greedy_gap import scored_answers
from pytest_specdec.judge.tolerance import tolerance
from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = [
    "LEAST_BLOCK",
    "OVERCOUNT",
    "AcceptanceDrop",
    "OfferedDrafts",
    "PhaseCounts",
    "Repeat",
    "acceptance_drop",
    "cached_tokens",
    "count_by_phase",
    "describe_cache",
    "describe_overcounts",
    "describe_windows",
    "fail_drop",
    "offered_drafts",
    "phase",
    "repeats",
    "tolerated_loss",
]

OVERCOUNT = "more cached tokens are reported than the prompt has"
_HALF = 0.5
"""Fraction of the earlier acceptance below which drafts count as dead: an engine that rebuilds a cache loses less."""

LEAST_BLOCK = 16
"""The least tokens that a cache block counts as, also for engines that cache single tokens."""


def phase(request_id: str) -> str:
    """Return the phase of a request by its id: ``warm`` for ``warm/code``."""
    return request_id.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """Two answers of one arm to the same request, in the order in which it was sent."""

    first: Answer
    later: Answer


def repeats(captured: Captured, transcript: Transcript) -> Iterator[Repeat]:
    """Yield each answer to a repeated question with the first one.

    Both are of one arm, to requests that ask the same. Pairs with an unsuccessful answer are left out.
    """
    asks = {request.id: request.asks for request in captured.workload.requests}
    first: dict[str, Answer] = {}
    for answer in transcript.answers:
        earliest = first.setdefault(asks.get(answer.request_id, answer.request_id), answer)
        if earliest is not answer and earliest.ok and answer.ok:
            yield Repeat(first=earliest, later=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCounts:
    """The scored answers of an arm by phase, and those with a wrong token."""

    answers: Mapping[str, int]
    """In the order in which the phases were sent."""
    wrong: Mapping[str, int]
    """The numbers of answers with a wrong token, by phase."""
    wrong_answers: tuple[Answer, ...]

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.wrong.get(name, 0)} of {count}" for name, count in self.answers.items())


def count_by_phase(captured: Captured) -> PhaseCounts:
    """Count the scored answers by phase, and those with a wrong token.

    A phase is a group of requests by their ids. A gap is how far a token lies below the baseline's best one, in nats: it is wrong beyond
    the tolerance, which allows for the noise of the run.
    """
    baseline_answers = [answer for arm in captured.baseline_boots for answer in scored_answers(arm, captured.scores.get(arm.arm, ()))]
    allowed, scored = tolerance(captured, baseline_answers), scored_answers(captured.speculative, captured.scores.get(captured.arm, ()))
    wrong_answers = tuple(answer.answer for answer in scored if any(gap > allowed.gap for gap in answer.gaps))
    return PhaseCounts(
        answers=Counter(phase(answer.answer.request_id) for answer in scored),
        wrong=Counter(phase(answer.request_id) for answer in wrong_answers),
        wrong_answers=wrong_answers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDrafts:
    """Accepted and offered draft tokens."""

    accepted: int
    offered: int

    @property
    def rate(self) -> float:
        """Accepted over offered, 0 for none."""
        return self.accepted / self.offered if self.offered else 0.0

    def __str__(self) -> str:
        return f"{self.accepted} of {self.offered} draft tokens"


def offered_drafts(answers: Sequence[Answer], draft: int) -> OfferedDrafts:
    """Return the accepted and offered draft tokens of whole verify steps.

    Each step counts as offering ``draft`` tokens. Where the steps of an answer are unknown, its own counters are taken.
    """
    shares = [_count_offered(answer, draft) for answer in answers]
    return OfferedDrafts(accepted=sum(share.accepted for share in shares), offered=sum(share.offered for share in shares))


def _count_offered(answer: Answer, draft: int) -> OfferedDrafts:
    """Return the accepted and offered draft tokens of one answer.

    They are counted in its verify steps, each of which offers ``draft`` tokens. Its own counters, of the server, are taken where the steps
    are unknown.
    """
    counters = answer.counters
    if counters is None or answer.choice.windows is not None:
        # The last token of a step is no draft token: it comes from the target.
        accepted = sum(min(step_tokens - 1, draft) for step_tokens in answer.choice.steps)
        return OfferedDrafts(accepted=accepted, offered=draft * len(answer.choice.steps))
    # A server that drafts nothing any more counts no draft token. Each token after the first then stands for a step that accepts none.
    offered_if_drafting = draft * max(0, (answer.tokens or 0) - 1)
    return OfferedDrafts(accepted=counters.accepted_tokens, offered=counters.draft_tokens or offered_if_drafting)


def _draft_tokens(captured: Captured, pairs: Sequence[Repeat]) -> int:
    """Return the draft tokens per verify step.

    They are those configured or, if unknown, the most accepted in one step, which emits one token more. Both answers of all pairs are
    looked at: where drafts die, the later ones alone show none.
    """
    windows = (window for repeat in pairs for answer in (repeat.first, repeat.later) for window in answer.choice.steps)
    return captured.pair.variant.draft.tokens or max(windows, default=1) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceDrop:
    """Acceptance that fell to half or less between equal answers."""

    before: OfferedDrafts
    after: OfferedDrafts
    p_value: float
    """Of Fisher's exact test."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The rates before and after, and the probability, one under another."""
        return (
            f"at first     {self.before.rate:.0%}",
            f"later        {self.after.rate:.0%}",
            f"by chance    p = {self.p_value:.2g}",
        )

    @property
    def cell(self) -> str:
        """Both rates in a few words."""
        return f"acceptance {self.before.rate:.0%} to {self.after.rate:.0%}"

    @property
    def figures(self) -> dict[str, float]:
        """Both rates and the probability, by name."""
        return {"acceptance_at_first": self.before.rate, "acceptance_later": self.after.rate, "p_value": self.p_value}


def acceptance_drop(captured: Captured, pairs: Sequence[Repeat], alpha: float) -> AcceptanceDrop | None:
    """Return the drop if later answers accept fewer draft tokens, else None.

    Only pairs of equal answers count: these differ in nothing but the server's state. Of all such pairs together, the rate of acceptance
    must have fallen to half or less, and Fisher's exact test must reject at ``alpha``. None also if the first answers accept nothing.
    """
    equal = [
        repeat
        for repeat in pairs
        if _shows_drafts(repeat.first) and _shows_drafts(repeat.later) and repeat.first.choice.token_ids == repeat.later.choice.token_ids
    ]
    draft = _draft_tokens(captured, equal)
    before, after = (offered_drafts(answers, draft) for answers in ([pair.first for pair in equal], [pair.later for pair in equal]))
    if not before.accepted or not after.offered or after.rate > _HALF * before.rate:
        return None
    p_value = proportions.greater_than_other(before.accepted, before.offered, after.accepted, after.offered)
    return AcceptanceDrop(before=before, after=after, p_value=p_value) if p_value <= alpha else None


def _shows_drafts(answer: Answer) -> bool:
    """Return True if an answer has verify windows or counters of its own."""
    return bool(answer.choice.windows) or answer.counters is not None


def fail_drop(captured: Captured, name: str, pairs: Sequence[Repeat], alpha: float) -> Verdict | None:
    """Return FAIL if later answers lost their drafts, else None.

    ``name`` is the fault that it names. :func:`acceptance_drop` decides on ``pairs`` at the level ``alpha``.
    """
    drop = acceptance_drop(captured, pairs, alpha)
    if drop is None:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {drop.after} accepted, {drop.before} at first, for the same answers",
        short=drop.lines,
        evidence=[describe_windows(repeat) for repeat in pairs],
        cell=drop.cell,
        names=name,
        figures=drop.figures,
    )


def describe_windows(repeat: Repeat) -> str:
    """Return the windows of both answers in words."""
    first, later = (" ".join(map(str, answer.choice.windows or ())) for answer in (repeat.first, repeat.later))
    return f"{repeat.later.request_id} after {repeat.first.request_id}: windows {first} at first, {later} later"


def cached_tokens(answer: Answer) -> int:
    """Return the prompt tokens reported as cached; 0 without a report."""
    return (answer.usage.cached_tokens or 0) if answer.usage else 0


def describe_overcounts(captured: Captured) -> str:
    """Return a clause on answers with more cached tokens than their prompts have.

    Empty without one. Empty too if a boot of the baseline itself reports too many: the engine then counts so without speculation.
    """
    if any(_exceeds_prompt(answer) for arm in captured.baseline_boots for answer in arm.answers):
        return ""
    beyond = [answer for answer in captured.speculative.answers if _exceeds_prompt(answer)]
    if not beyond:
        return ""
    first, usage = beyond[0], beyond[0].usage
    counts = f"{usage.cached_tokens} of {usage.prompt_tokens}" if usage else ""
    return f"{len(beyond)} answers; first: request {first.request_id}, {counts}"


def _exceeds_prompt(answer: Answer) -> bool:
    return answer.usage is not None and cached_tokens(answer) > answer.usage.prompt_tokens


def describe_cache(arm: Transcript) -> str:
    """Return an arm's cached and prompt tokens over all answers, in words."""
    usages = [answer.usage for answer in arm.answers if answer.usage is not None]
    cached = sum(usage.cached_tokens or 0 for usage in usages)
    return f"{cached:,} of {sum(usage.prompt_tokens for usage in usages):,} prompt tokens reported as cached"


def tolerated_loss(captured: Captured) -> int:
    """Return the cached tokens of a prompt that a correct variant may lack.

    They are those of one cache block, whose last tokens a drafter may not have been fed yet. They are two blocks if heads draft or the
    drafter is unknown: for heads vLLM drops the last matching block, to compute the hidden states that a head needs. The size of a block is
    estimated by the greatest common divisor of all reported counts, and is at least ``LEAST_BLOCK``.
    """
    arms = (captured.speculative, *captured.baseline_boots)
    block = max(LEAST_BLOCK, gcd(*(cached_tokens(answer) for arm in arms for answer in arm.answers)))
    return block * (1 if captured.pair.variant.draft.kind in {DraftKind.MODEL, DraftKind.NGRAM} else 2)

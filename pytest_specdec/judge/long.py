"""Long contexts: after an eighth, a quarter, a half and the whole of them, tokens are the baseline's choice and drafts are accepted.

Tokens drawn at a temperature are held to their number and their end only. How much a drafter may lose with the depth is its own matter:
figures show it, and only a fall to next to nothing fails, or to half where the config states that drafts reach that far.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.judge import context
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy_gap import distinct_gaps, scored_answers
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, is_refusal, refusal, speculating, unscorable
from pytest_specdec.judge.repeats import fail_drop, repeats
from pytest_specdec.judge.tolerance import describe_remedy, tolerance
from pytest_specdec.judge.verdicts import against, restate, say
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.prompts.context import is_open
from pytest_specdec.prompts.long import LIMIT_PARTS, Kind, copied_text, kind_of, limit_part
from pytest_specdec.stats import proportions
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_specdec.judge.greedy_gap import ScoredAnswer
    from pytest_specdec.judge.tolerance import Tolerance
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

DRAFTS_DIE_LATER = "drafts are no longer accepted after long requests"
WRONG_EVERYWHERE = "tokens of long prompts are wrong at every depth"
WRONG_SHALLOW = "tokens of long prompts are wrong, the shortest among them too"
WRONG_SHORT = "tokens of a short prompt are wrong"
WRONG_ANY = "tokens of short and long prompts are wrong"
WRONG_TOGETHER = "tokens of several long prompts together are wrong"
_NEXT_TO_NOTHING = 0.1
"""Fraction of the shallowest acceptance up to which drafts count as dead at a depth: a drafter trained on short texts keeps more."""
_HALF = 0.5
"""The same where the config states that drafts reach that far."""
_COPIES = (Kind.COPY, Kind.REPEAT)
"""Kinds of which the text is the same at every depth."""
_LEAST_STEPS = 4
"""Whole verify steps on copied text that a depth needs to be compared: long drafts that are accepted leave few, and Fisher's test holds its
level with any number."""
_ENOUGH = 20
"""Scored tokens that a pass needs."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on answers after long contexts.

    They have to be answered, refused and ended as by the baseline. At temperature 0 their tokens must be its choice, as far as sequences
    are short enough to be scored. On text that answers copy, draft tokens must be accepted at every depth, and still after the longest
    prompts.
    REFUSED if the longest sequence is unknown, or too short for parts of it to be long.
    """
    return (
        _check_server(captured)
        or _check_limit(captured)
        or refusal(captured)
        or context.fail_context(captured, [*context.find_unlike_refusals(captured), *context.find_miscounts(captured)])
        or check_endings(captured)
        or unscorable(captured, rejecting=False)
        or _check_tokens(captured)
        or _check_later_drafts(captured)
        or _check_drafts_by_depth(captured)
        or speculating(captured, rejecting=False)
        or _pass_long(captured)
    )


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on server failures; None without one.

    A FAIL gets the context's length at which the server failed, if it answered after a shorter one.
    """
    verdict = server_failure(replace(captured, on_verdict=None))
    if verdict is None:
        return None
    if verdict.outcome is not Outcome.FAIL or verdict.example is None:
        return restate(captured, verdict)
    request_id = verdict.example.request_id
    failed = _prompt_tokens(captured).get(request_id, 0)
    survived = max((tokens for tokens, answer in _answers(captured) if answer.ok and tokens < failed), default=0)
    if not survived:
        return restate(captured, verdict)
    headline = f"{verdict.headline}; it fails after {failed:,} tokens of context, and answers after {survived:,}"
    return restate(captured, verdict, headline=headline, names=f"{verdict.names} after {failed:,} tokens of context")


def _prompt_tokens(captured: Captured) -> Mapping[str, int]:
    """Return the tokens of each request's prompt: its ids, or for a text the count of a server that answered it."""
    sent = {request.id: len(prompt) for request in captured.workload.requests if isinstance(prompt := request.body["prompt"], list | tuple)}
    counts = {answer.request_id: answer.prompt_tokens for arm in (captured.speculative, captured.baseline) for answer in arm.answers}
    return {name: tokens for name, tokens in counts.items() if tokens} | sent


def _answers(captured: Captured) -> Iterator[tuple[int, Answer]]:
    """Yield the judged answers, each after the tokens of its prompt, 0 if unknown."""
    tokens = _prompt_tokens(captured)
    yield from ((tokens.get(answer.request_id, 0), answer) for answer in captured.speculative.answers)


def _depths(captured: Captured) -> dict[str, int]:
    """Return the tokens of prompts by depth, a part of the context limit such as ``half``, the shallowest first."""
    tokens = _prompt_tokens(captured)
    depths = {limit_part(name): count for name, count in tokens.items() if limit_part(name) in LIMIT_PARTS}
    return dict(sorted(depths.items(), key=lambda item: item[1]))


def _check_limit(captured: Captured) -> Verdict | None:
    """Return REFUSED if no prompt is a known part of the context limit, else None."""
    if not is_open(captured.workload) and any(limit_part(request.id) in LIMIT_PARTS for request in captured.workload.requests):
        return None
    headline = "the server's longest sequence is unknown, or so short that the family context fills it"
    return say(captured, Outcome.REFUSED, headline, settle="state it among the engine's args, as max-model-len", cell="limit unknown")


def _check_tokens(captured: Captured) -> Verdict | None:
    """Return FAIL if more tokens are wrong than noise explains.

    Only answers at temperature 0 count. A token is wrong if it lies below the baseline's best one by more than the tolerance. The fault is
    named by the depths with wrong tokens. SUSPICIOUS if such tokens are too many for noise and too few for an alarm, INVALID if the
    baseline does not repeat itself, else None.
    """
    scored = _greedy_scored(captured, captured.arm, captured.speculative)
    peers = [answer for boot in captured.baseline_boots for answer in _greedy_scored(captured, boot.arm, boot)]
    allowed = tolerance(captured, peers)
    gaps = distinct_gaps(captured.workload, scored)
    events = sum(gap > allowed.gap for gap in gaps)
    if not allowed.trustworthy:
        headline = "the baseline does not repeat itself after long prompts, so it cannot judge"
        return say(captured, Outcome.INVALID, headline, cell="baseline unsteady")
    if not allowed.is_wrong(events, len(gaps), captured.alpha):
        return _say_open(captured, allowed, events, len(gaps)) if allowed.is_open(events, len(gaps)) else None
    wrong = [answer for answer in scored if any(gap > allowed.gap for gap in answer.gaps)]
    counts = Counter(limit_part(answer.answer.request_id) for answer in wrong)
    answers = Counter(limit_part(answer.answer.request_id) for answer in scored)
    tokens, sizes = _depths(captured), {limit_part(name): size for name, size in _prompt_tokens(captured).items()}
    lines = [f"{sizes.get(depth, 0):,} tokens: {counts[depth]} of {count} answers have a wrong token" for depth, count in answers.items()]
    name = _name_wrong(captured, counts, answers, tokens)
    first = wrong[0].answer
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {events:,} of {len(gaps):,} tokens by more than {allowed.gap:.2f} nats, more than noise explains; "
        f"{_describe_right(counts, answers, tokens)}",
        short=(*lines[:3], f"first        {first.request_id}"),
        evidence=lines,
        cell=f"{events:,} of {len(gaps):,} tokens wrong",
        names=name,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id),
        figures={"wrong_tokens": float(events), "tokens": float(len(gaps))},
    )


def _say_open(captured: Captured, allowed: Tolerance, events: int, tokens: int) -> Verdict:
    """Return SUSPICIOUS for more wrong tokens than noise explains, and too few for an alarm."""
    headline = f"{events:,} of {tokens:,} tokens lie further below the best than noise explains"
    evidence = against(allowed.log_evidence(events, tokens), captured.alpha)
    return say(
        captured,
        Outcome.SUSPICIOUS,
        f"{headline}; evidence {evidence}",
        settle=describe_remedy(captured),
        cell=f"{events:,} of {tokens:,} tokens doubtful",
    )


def _greedy_scored(captured: Captured, arm: str, transcript: Transcript) -> tuple[ScoredAnswer, ...]:
    """Return an arm's scored answers at temperature 0."""
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    scored = scored_answers(transcript, captured.scores.get(arm, ()))
    return tuple(answer for answer in scored if answer.answer.request_id in greedy)


def _name_wrong(captured: Captured, wrong: Mapping[str, int], answers: Mapping[str, int], tokens: Mapping[str, int]) -> str:
    """Return the fault's name by the depths with wrong tokens.

    ``wrong`` and ``answers`` are numbers of answers by depth, ``tokens`` the prompts' lengths, the shallowest depth first. WRONG_ANY or
    WRONG_SHORT if a short prompt, which is of no depth, has wrong tokens too or alone. WRONG_EVERYWHERE if every depth has some,
    WRONG_SHALLOW if the shallowest and not all others have, WRONG_TOGETHER if only prompts sent together have some and all deeper ones,
    sent alone, are right. Otherwise the name has the length of the shallowest wrong depth.
    """
    scored = [depth for depth in tokens if answers.get(depth)]
    bad = [depth for depth in scored if wrong.get(depth)]
    if any(wrong[name] for name in wrong.keys() - tokens.keys()):
        return WRONG_ANY if bad else WRONG_SHORT
    if bad == scored:
        return WRONG_EVERYWHERE
    if bad[0] == scored[0]:
        return WRONG_SHALLOW
    # Reversed, so that the first wave of a depth counts: later ones ask some of its prompts again.
    wave_sizes = {limit_part(wave[0].id): len(wave) for wave in reversed(captured.workload.in_waves)}
    deeper = scored[scored.index(bad[-1]) + 1 :]
    if deeper and all(wave_sizes.get(depth, 1) > 1 for depth in bad) and all(wave_sizes.get(depth, 1) == 1 for depth in deeper):
        return WRONG_TOGETHER
    return f"tokens are wrong after {tokens[bad[0]]:,} tokens of context"


def _describe_right(wrong: Mapping[str, int], answers: Mapping[str, int], tokens: Mapping[str, int]) -> str:
    """Return a clause on the depths without a wrong token."""
    right = [f"{tokens[depth]:,}" for depth in tokens if answers.get(depth) and not wrong.get(depth)]
    return f"none after {', '.join(right)}" if right else "at every depth asked"


def _check_later_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if equal answers to a prompt asked again accept half or less of the drafts; None otherwise."""
    if captured.is_control:
        return None
    return fail_drop(captured, DRAFTS_DIE_LATER, list(repeats(captured, captured.speculative)), captured.alpha)


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAcceptance:
    """The drafts accepted on one kind of text at one depth."""

    depth: str
    prompt_tokens: int
    windows: tuple[int, ...]
    """Tokens of each whole verify step."""
    draft_tokens: int
    """Draft tokens of a step, by the config or as the longest window shows."""
    drafted: bool
    """Whether the server reports a draft for any answer; True for an answer without such a report."""
    has_steps: bool
    """Whether the answers show verify steps at all, on copied text or not."""

    @property
    def accepted_tokens(self) -> int:
        """Accepted draft tokens."""
        return sum(min(window - 1, self.draft_tokens) for window in self.windows)

    def count_accepting(self, place: int) -> int:
        """Return the steps that accept the draft token at ``place``, from 1."""
        return sum(window > place for window in self.windows)

    @property
    def offered_tokens(self) -> int:
        """Offered draft tokens, counted as ``draft_tokens`` for every step."""
        return self.draft_tokens * len(self.windows)

    @property
    def rate(self) -> float:
        """Accepted over offered, 0 for none."""
        return self.accepted_tokens / self.offered_tokens if self.offered_tokens else 0.0

    @property
    def length(self) -> float:
        """Tokens per verify step, 0 without one."""
        return sum(self.windows) / len(self.windows) if self.windows else 0.0

    @property
    def positions(self) -> tuple[float, ...]:
        """The share of steps that accept each draft position, from the first."""
        return tuple(self.count_accepting(place) / len(self.windows) for place in range(1, self.draft_tokens + 1))

    def __str__(self) -> str:
        if not self.windows:
            return f"{self.prompt_tokens:,} tokens: {'the answers copy nothing' if self.has_steps else 'no whole verify step seen'}"
        positions = " ".join(f"{share:.0%}" for share in self.positions)
        return f"{self.prompt_tokens:,} tokens: {self.length:.2f} a step over {len(self.windows)} steps, by position {positions}"


def _acceptance(captured: Captured, kind: Kind) -> list[DepthAcceptance]:
    """Return the acceptance of one kind of requests by depth, the shallowest first.

    Of answers that copy, only the steps within the copied text count: it is the same at every depth.
    """
    by_depth = _depths(captured)
    of_kind = [answer for answer in captured.speculative.answers if answer.ok and kind_of(answer.request_id) == kind]
    draft = captured.pair.variant.draft.tokens or max((window for answer in of_kind for window in answer.choice.steps), default=1) - 1
    result = []
    for depth, tokens in by_depth.items():
        answers = [answer for answer in of_kind if limit_part(answer.request_id) == depth]
        windows = [window for answer in answers for window in _steps(answer, copies=kind in _COPIES)]
        drafted = any(count for answer in answers for count in answer.choice.drafted or (1,))
        has_steps = any(answer.choice.steps for answer in answers)
        result.append(
            DepthAcceptance(
                depth=depth, prompt_tokens=tokens, windows=tuple(windows), draft_tokens=draft, drafted=drafted, has_steps=has_steps
            )
        )
    return result


def _steps(answer: Answer, *, copies: bool) -> tuple[int, ...]:
    """Return the tokens of an answer's whole verify steps.

    If the answer ``copies``, only steps within the copied text are returned.
    """
    windows = answer.choice.steps
    if not copies:
        return windows
    copied_tokens = first_difference(answer.choice.token_ids, copied_text(answer.prompt_token_ids, len(answer.choice.token_ids)))
    prefill_tokens = sum((answer.choice.windows or ())[:1])
    starts = accumulate(windows, initial=prefill_tokens)
    return tuple(window for window, start in zip(windows, starts, strict=False) if start + window <= copied_tokens)


def _check_drafts_by_depth(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts on copied text die with the depth; None otherwise.

    Each depth is compared with the shallowest, at an equal share of alpha. It fails with a tenth or less of that acceptance, or with half
    or less where the config states that drafts reach that far. Beyond a reach that the config states nothing fails.
    """
    compared = [] if captured.is_control else [pair for kind in _COPIES for pair in _compare_depths(captured, kind)]
    for shallow, deep in compared:
        p_value = _test_positions(shallow, deep)
        loss = _allowed_loss(captured, deep)
        if loss is not None and deep.rate <= loss * shallow.rate and p_value <= captured.alpha / len(compared):
            return _fail_drafts(captured, shallow, deep, p_value)
    return None


def _test_positions(shallow: DepthAcceptance, deep: DepthAcceptance) -> float:
    """Return the p-value of fewer accepting steps at the deeper depth.

    By Fisher's exact test for each draft position and Bonferroni's bound over them: steps are counted, since the tokens of one depend on
    each other.
    """
    counted = [
        (shallow.count_accepting(place), len(shallow.windows), deep.count_accepting(place), len(deep.windows))
        for place in range(1, shallow.draft_tokens + 1)
    ]
    return min(1.0, len(counted) * min(proportions.greater_than_other(*counts) for counts in counted))


def _compare_depths(captured: Captured, kind: Kind) -> list[tuple[DepthAcceptance, DepthAcceptance]]:
    """Return the shallowest depth paired with each deeper one.

    Depths with too few steps on copied text are left out. Empty if the shallowest accepts nothing.
    """
    copies = [each for each in _acceptance(captured, kind) if len(each.windows) >= _LEAST_STEPS]
    return [(copies[0], deep) for deep in copies[1:] if copies[0].accepted_tokens]


def _allowed_loss(captured: Captured, acceptance: DepthAcceptance) -> float | None:
    """Return the fraction of the shallowest acceptance at which a depth fails; None if it may lose all."""
    reach = captured.pair.variant.draft.context
    if not reach:
        return _NEXT_TO_NOTHING
    return _HALF if acceptance.prompt_tokens < reach else None


def _fail_drafts(captured: Captured, shallow: DepthAcceptance, dead: DepthAcceptance, p_value: float) -> Verdict:
    """Return FAIL for the acceptance ``dead`` at one depth beside ``shallow``."""
    verb = "accepted" if dead.drafted else "made"
    name = f"drafts are no longer {verb} after {dead.prompt_tokens:,} tokens of context"
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {dead.accepted_tokens} of {dead.offered_tokens} draft tokens, "
        f"{shallow.accepted_tokens} of {shallow.offered_tokens} after {shallow.prompt_tokens:,}, for the same text to copy",
        short=(
            f"shallow      {shallow}",
            f"deep         {dead}",
            f"by chance    p = {p_value:.2g}",
            "if meant     state how far drafts reach: `draft_context` of the variant in the config",
        ),
        evidence=_table(captured),
        cell=f"acceptance {shallow.rate:.0%} to {dead.rate:.0%}",
        names=name,
        figures={**_figures(captured), "p_value": p_value},
    )


_TITLES = {Kind.COPY: "copying", Kind.REPEAT: "repeating", Kind.CONTINUE: "going on", Kind.SAMPLED: "drawn"}


def _table(captured: Captured) -> list[str]:
    """Return a line per kind and depth on the drafts accepted, after one on the model's positions."""
    positions = captured.capabilities.get(BASELINE, Capabilities()).positions
    lines = [f"positions {positions}"] if positions else []
    return lines + [f"{title:<9} {each}" for kind, title in _TITLES.items() for each in _acceptance(captured, kind)]


def _figures(captured: Captured) -> dict[str, float]:
    """Return the prompt's tokens by depth, and the acceptance at each depth.

    Acceptance is, for each kind of text with verify steps, the accepted length and the accepted share by draft position.
    """
    figures: dict[str, float] = {}
    for kind in Kind:
        for each in _acceptance(captured, kind):
            figures[f"prompt_tokens_{each.depth}"] = float(each.prompt_tokens)
            if each.windows:
                figures[f"accepted_length_{each.depth}_{kind}"] = each.length
                figures |= {f"accepted_{each.depth}_{kind}_{place}": share for place, share in enumerate(each.positions, 1)}
    return figures


def _pass_long(captured: Captured) -> Verdict:
    """Return PASS with the figures by depth, or INCONCLUSIVE for too few scored tokens."""
    scored = _greedy_scored(captured, captured.arm, captured.speculative)
    tokens = sum(len(answer.positions) for answer in scored)
    table, figures, depths = _table(captured), _figures(captured), _depths(captured)
    if tokens < _ENOUGH:
        headline = f"only {tokens} tokens could be scored; {_ENOUGH} are needed"
        return say(
            captured,
            Outcome.INCONCLUSIVE,
            headline,
            evidence=table,
            settle="serve prompt log-probabilities",
            cell="few tokens",
            figures=figures,
        )
    deepest = max(depths.values())
    scored_to = max(_prompt_tokens(captured)[answer.answer.request_id] for answer in scored)
    lengths = _describe_copies(captured)
    unscored = f"; tokens after more than {scored_to:,} are not scored" if deepest > scored_to else ""
    # Refusals unlike the baseline's have failed before.
    given = captured.speculative.answers
    answers, alike = sum(answer.ok for answer in given), sum(map(is_refusal, given))
    return say(
        captured,
        Outcome.PASS,
        f"{answers} answers after up to {deepest:,} tokens of context; {tokens} scored tokens are right but for noise{unscored}"
        + lengths
        + (f"; {alike} refused alike" if alike else ""),
        rules_out=f"ends, refusals and dead drafts after up to {deepest:,} tokens, wrong tokens after up to {scored_to:,}",
        evidence=(*table, *describe_refusals(captured.speculative.answers)),
        cell=f"up to {deepest:,}",
        figures=figures | {"tokens": float(tokens), "deepest_prompt_tokens": float(deepest), "deepest_scored_tokens": float(scored_to)},
    )


def _describe_copies(captured: Captured) -> str:
    """Return a clause on the tokens per step on copied text, by depth.

    Of the two kinds of copied text, the one with such steps at more depths is described.
    """
    by_kind = [[each for each in _acceptance(captured, kind) if each.windows] for kind in _COPIES]
    copies = max(by_kind, key=len)
    if not copies:
        return "; no step on copied text seen"
    return "; tokens a step on copied text: " + ", ".join(f"{each.length:.2f} after {each.prompt_tokens:,}" for each in copies)

"""Invariants: rules between the parts of an answer that any correct server keeps, held on every answer of a run.

Rules of ends are those of :mod:`pytest_specdec.judge.ending`, here with what the baseline's answers of the whole run show. A rule that the
baseline or the control breaks says nothing about the variant, and is left out. A rule that chance may break counts answers against theirs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.pair import BASELINE, DraftKind
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.transcript import Answer, Choice, SpecCounters, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["judge"]

_BY_CHANCE = 1e-6
"""P-value below which a difference in numbers is a rule broken; outside every budget, and small beside all of them."""
_SHOWN = 50
_Broken: TypeAlias = dict[str, str]
"""By the name of an answer, what it breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """One rule and the answers that break it."""

    rule: AnswerRule
    broken: _Broken
    peers: _Broken
    """Of the baseline and the control."""
    answers: int
    peer_answers: int

    @property
    def is_finding(self) -> bool:
        """Whether the variant breaks it and the baseline does not, or far more often where chance may break it."""
        if not self.rule.by_chance:
            return bool(self.broken) and not self.peers
        p_value = proportions.greater_than_other(len(self.broken), self.answers, len(self.peers), self.peer_answers)
        return p_value <= _BY_CHANCE


def judge(run: CapturedRun) -> Verdict:
    """Return whether every answer of the variant keeps the rules that the baseline's answers keep."""
    results = [_result(run.whole, rule) for rule in RULES]
    return (
        refusal(run.whole)
        or _fail_rules(run, results)
        or _fail_counters(run)
        or check_endings(run.whole)
        or speculating(run.whole, rejecting=False)
        or _pass_invariants(run, results)
    )


def _result(whole: Captured, rule: AnswerRule) -> RuleResult:
    control = whole.baseline_boots[1:]
    mine = list(_compare_answers(whole, whole.speculative, whole.baseline_boots))
    theirs = [each for arm in control for each in _compare_answers(whole, arm, (whole.baseline,))]
    theirs += _compare_answers(whole, whole.baseline, control)
    return RuleResult(rule=rule, broken=_by_name(rule, mine), peers=_by_name(rule, theirs), answers=len(mine), peer_answers=len(theirs))


def _by_name(rule: AnswerRule, compared: Sequence[ComparedAnswer]) -> _Broken:
    """Return what each answer breaks, one to a request: its passes are no independent trials."""
    breaks = ((each, rule.breaks(each)) for each in compared)
    return {f"{each.arm} {each.answer.request_id}": what for each, what in breaks if what}


def _compare_answers(whole: Captured, transcript: Transcript, others: Sequence[Transcript]) -> Iterator[ComparedAnswer]:
    draft, requests = whole.pair.variant.draft, whole.workload.by_id
    by_key: dict[tuple[str, int], list[Answer]] = {}
    for other in others:
        for answer in filter(_is_ok, other.answers):
            by_key.setdefault(answer.key, []).append(answer)
    for answer in filter(_is_ok, transcript.answers):
        if answer.request_id in requests:
            yield ComparedAnswer(
                arm=transcript.arm,
                request=requests[answer.request_id],
                answer=answer,
                others=tuple(by_key.get(answer.key, ())),
                vocabulary=whole.vocabulary,
                draft_tokens=0 if draft.kind is DraftKind.UNKNOWN else draft.tokens,
            )


def _is_ok(answer: Answer) -> bool:
    return answer.ok


def _fail_rules(run: CapturedRun, results: Sequence[RuleResult]) -> Verdict | None:
    """Return a failure by the first rule that is broken: the rules before others explain these."""
    findings = [result for result in results if result.is_finding]
    if not findings:
        return None
    first, count = findings[0], len(findings[0].broken)
    lines = [f"{name.partition(' ')[2]}: {what}" for name, what in first.broken.items()]
    more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    others = ", ".join(f"{each.rule.name} in {len(each.broken)}" for each in findings[1:])
    return say(
        run.whole,
        Outcome.FAIL,
        f"{first.rule.name}: {count} of {first.answers} answers, {len(first.peers)} of {first.peer_answers} of the baseline's"
        + (f"; also {others}" if others else ""),
        short=(f"first        {lines[0]}",),
        evidence=(*lines[:_SHOWN], *more),
        cell=f"{count} answers",
        names=first.rule.name,
        figures={"answers": float(first.answers), "broken_answers": float(count)},
    )


def _fail_counters(run: CapturedRun) -> Verdict | None:
    """Return a failure by the server's speculation counters over a workload."""
    if run.whole.is_control:
        return None
    breaches = [(part, *broken) for part in run.parts if (broken := find_counter_breach(part)) is not None]
    if not breaches:
        return None
    part, name, what = breaches[0]
    lines = [f"{each.workload.name}: {text}" for each, _, text in breaches]
    return say(
        run.whole,
        Outcome.FAIL,
        f"{name}: over {len(breaches)} of {len(run.parts)} workloads, first {part.workload.name}: {what}",
        short=(f"first        {lines[0]}",),
        evidence=lines,
        cell=f"{len(breaches)} workloads",
        names=name,
        figures={"workloads": float(len(run.parts)), "broken_workloads": float(len(breaches))},
    )


def _pass_invariants(run: CapturedRun, results: Sequence[RuleResult]) -> Verdict:
    answers = sum(answer.ok for answer in run.whole.speculative.answers)
    if not answers:
        return say(run.whole, Outcome.INVALID, "the run has no answers to judge")
    left_out = [result for result in results if result.peers and not result.rule.by_chance]
    rule_count = len(results) - len(left_out)
    lines = [f"left out, since the {BASELINE} breaks it: {result.rule.name}, {_first(result.peers)}" for result in left_out]
    lines += [f"not answered by both arms: {name}" for name in run.missing]
    return say(
        run.whole,
        Outcome.PASS,
        f"{answers:,} answers of {len(run.parts)} workloads keep {rule_count} of {len(results)} rules, and those of how an answer ends",
        evidence=lines,
        rules_out=f"{answers:,} answers; a rule broken in more than {proportions.ruled_out(answers):.2%} would have been caught (99%)",
        cell=f"{answers:,} answers",
        figures={"answers": float(answers), "workloads": float(len(run.parts)), "rules_left_out": float(len(left_out))},
    )


def _first(broken: _Broken) -> str:
    name, what = next(iter(broken.items()))
    return f"{name}: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswer:
    """One answer of one arm, with the baseline's own to the same request."""

    arm: str
    request: Request
    answer: Answer
    others: tuple[Answer, ...]
    """Of the baseline's boots, the judged one left out."""
    vocabulary: int
    draft_tokens: int
    """Per verify step at most; 0 where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRule:
    """A rule, named by its breach."""

    name: str
    breaks: Callable[[ComparedAnswer], str]
    """Return how an answer breaks it, empty where it keeps it."""
    by_chance: bool = False
    """Whether a correct server may break it now and then, as a model may write what it likes."""


_WRITTEN_SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_ ]{2,40}\|>|<\uff5c[^\uff5c<>]{2,40}\uff5c>|</?s>|<(?:eos|bos|pad|unk)>|<(?:start|end)_of_(?:turn|text)>|\[/?INST\]"
)
"""Names of special tokens in the vocabularies of common models: ChatML, Llama, Gemma, Mistral, DeepSeek."""
_BROKEN = "\ufffd"


def _prompt(case: ComparedAnswer) -> str:
    usage = case.answer.usage
    counts = {other.usage.prompt_tokens for other in case.others if other.usage}
    if usage is not None and len(counts) == 1 and usage.prompt_tokens not in counts:
        return f"usage counts {usage.prompt_tokens} prompt tokens, the baseline's {counts.pop()}"
    prompts = {other.prompt_token_ids for other in case.others if other.prompt_token_ids}
    differs = bool(case.answer.prompt_token_ids) and len(prompts) == 1 and case.answer.prompt_token_ids not in prompts
    return "the prompt is reported with other token ids than the baseline's" if differs else ""


def _total(case: ComparedAnswer) -> str:
    usage = case.answer.usage
    if usage is None or usage.total_tokens is None or usage.total_tokens == usage.prompt_tokens + usage.completion_tokens:
        return ""
    return f"usage counts {usage.prompt_tokens} + {usage.completion_tokens} tokens and {usage.total_tokens} in total"


def _choices(case: ComparedAnswer) -> str:
    requested = case.request.body.get("n", 1)
    count = len(case.answer.choices)
    return f"{count} choices where n is {requested}" if isinstance(requested, int) and count != requested else ""


def _vocabulary(case: ComparedAnswer) -> str:
    beyond = (token for choice in case.answer.choices for token in choice.token_ids if token >= case.vocabulary > 0)
    return next((f"token id {token} in a vocabulary of {case.vocabulary}" for token in beyond), "")


def _window(case: ComparedAnswer) -> str:
    most = case.draft_tokens + 1
    wide = (window for choice in case.answer.choices for window in choice.windows or () if case.draft_tokens and window > most)
    return next((f"a verify step of {window} tokens, where {most - 1} are drafted" for window in wide), "")


def _ids(case: ComparedAnswer) -> str:
    """Report ids that cannot be those of the text: the baseline's for the same text, two in another order or one replaced."""
    for mine in case.answer.choices if len(case.answer.choices) == 1 else ():
        for other in case.others:
            if len(other.choices) == 1 and (what := _other_ids(mine, other.choice)):
                return what
    return ""


def _other_ids(mine: Choice, theirs: Choice) -> str:
    same = mine.written == theirs.written and bool(mine.written) and mine.finish_reason == theirs.finish_reason
    ids, others = mine.token_ids, theirs.token_ids
    if not same or len(ids) != len(others) or ids == others or not ids:
        return ""
    differing = [i for i, (own, other) in enumerate(zip(ids, others, strict=True)) if own != other]
    swapped = sorted(ids) == sorted(others)
    if not swapped and len(differing) > 1:
        return ""
    at = differing[0]
    return f"the text is the baseline's, but id {at} is {ids[at]} where the baseline has {others[at]}"


def _special(case: ComparedAnswer) -> str:
    body_text = json.dumps(case.request.body, ensure_ascii=False, default=str)
    if case.request.body.get("skip_special_tokens") is False:
        return ""
    leaked = (
        match[0] for choice in case.answer.choices for match in _WRITTEN_SPECIAL.finditer(choice.written) if match[0] not in body_text
    )
    return next((f"the text has {quote(token)}" for token in leaked), "")


def _characters(case: ComparedAnswer) -> str:
    """Report broken characters in front of the end, where a limit may have cut one."""
    body_text = json.dumps(case.request.body, ensure_ascii=False, default=str)
    texts = (choice.written.rstrip(_BROKEN) for choice in case.answer.choices if _BROKEN not in body_text)
    return next((f"U+FFFD in {quote(text[max(0, text.index(_BROKEN) - 10) :], 24)}" for text in texts if _BROKEN in text), "")


RULES = (
    AnswerRule(name="usage counts another prompt", breaks=_prompt),
    AnswerRule(name="usage does not add up", breaks=_total),
    AnswerRule(name="choices are missing", breaks=_choices),
    AnswerRule(name="a token id is outside the vocabulary", breaks=_vocabulary),
    AnswerRule(name="a verify step emits more tokens than it can", breaks=_window),
    AnswerRule(name="token ids and text disagree", breaks=_ids, by_chance=True),
    AnswerRule(name="special tokens stand in the text", breaks=_special, by_chance=True),
    AnswerRule(name="the text has broken characters", breaks=_characters, by_chance=True),
)
"""In the order in which a verdict names them: what is broken first explains what is broken later."""


UNEVEN = "the speculation counters do not add up"
STILL = "the speculation counters stand still"
_ENOUGH = 20
"""Accepted tokens in windows of the answers beside which counters of 0 are no accident."""
_MOST_DRAFTED = 32
_SLACK, _ROUNDED = 8, 0.05
"""Tokens, and part of the tokens, by which figures may be off that were read from rounded lines of a log or estimated."""
_CHAINS = frozenset({DraftKind.MODEL, DraftKind.NGRAM})
"""Drafters that propose as many tokens as can be accepted; heads may propose a tree of them."""


def find_counter_breach(part: Captured) -> tuple[str, str] | None:
    """Return the name of a breach and its figures; None where there is none, and where the counters may count something else too."""
    transcript = part.speculative
    counters = transcript.counters
    shared = transcript.foreign or transcript.uncounted or transcript.replaced or transcript.restarts or transcript.server_failures
    if counters is None or shared or not all(answer.ok for answer in transcript.answers):
        return None
    seen = _count_accepted(transcript)
    if counters.drafts <= 0 and seen >= _ENOUGH:
        return STILL, f"{counters.drafts} drafts counted while the answers show {seen} accepted draft tokens"
    what = next(_find_uneven_counts(counters, part), "") or _more_than_emitted(counters, part)
    return (UNEVEN, what) if what else None


def _count_accepted(transcript: Transcript) -> int:
    """Return the accepted draft tokens that the answers' windows show."""
    return sum(window - 1 for answer in transcript.answers for choice in answer.choices for window in choice.windows or ())


def _find_uneven_counts(counters: SpecCounters, part: Captured) -> Iterator[str]:
    """Yield what no count of drafts can be, by more than engines lose that round their figures or estimate one from others."""
    draft, by_position = part.pair.variant.draft, counters.accepted_per_position
    most = draft.tokens if draft.kind in _CHAINS else 0
    slack = _SLACK + _ROUNDED * counters.accepted_tokens
    if counters.accepted_tokens > counters.draft_tokens + slack:
        yield f"{counters.accepted_tokens} tokens accepted of {counters.draft_tokens} drafted"
    if most and counters.draft_tokens > most * counters.drafts * (1 + _ROUNDED) + _SLACK:
        yield f"{counters.draft_tokens} tokens in {counters.drafts} drafts of {most} at most"
    if min(counters.drafts, counters.draft_tokens, counters.accepted_tokens) < -_SLACK:
        yield "a counter went down"
    if by_position and abs(sum(by_position) - counters.accepted_tokens) > slack:
        yield f"{counters.accepted_tokens} tokens accepted, {sum(by_position)} over all positions"
    if any(later > earlier + slack for earlier, later in pairwise(by_position)):
        yield f"a later position is accepted more often than an earlier one: {by_position}"


def _more_than_emitted(counters: SpecCounters, part: Captured) -> str:
    """Report more tokens of verify steps than the answers hold: each step emits what it accepts and one more, the last may be cut."""
    answers = part.speculative.answers
    choices = sum(len(answer.choices) for answer in answers)
    counts = [answer.usage.completion_tokens if answer.usage else sum(len(c.token_ids) for c in answer.choices) for answer in answers]
    emitted, steps = sum(counts), counters.drafts + counters.accepted_tokens
    leeway = 2 * choices * ((part.pair.variant.draft.tokens or _MOST_DRAFTED) + 1)
    if not all(counts) or steps <= emitted + leeway:
        return ""
    return f"steps of {steps} tokens counted, {emitted} answered"

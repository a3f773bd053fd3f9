"""Invariants: rules between the parts of an answer that any correct server keeps, checked on every answer of a run.

The variant speculates and is judged; the baseline and the control, its second boot, do not. ``run.whole`` joins the answers of all
workloads, ``run.parts``. A rule that the baseline or the control breaks says nothing about the variant, and is left out. A rule that a
correct server may break by chance (``by_chance``) fails only if the variant breaks it in far more answers than they do. A breach is one
answer that breaks a rule, described in words.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from pytest_specdec.judge.ending import check_endings, describe_untested_ends
from pytest_specdec.judge.prerequisites import refusal, speculating
from pytest_specdec.judge.verdicts import number_of, quote, say
from pytest_specdec.model.pair import BASELINE, DraftKind
from pytest_specdec.model.spec_counters import SpecCounters
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.captured_run import CapturedRun
    from pytest_specdec.model.transcript import Answer, Choice, Transcript
    from pytest_specdec.model.verdict import Verdict
    from pytest_specdec.model.workload import Request

__all__ = ["judge"]

_BY_CHANCE = 1e-6
"""P-value up to which more broken answers than the baseline's are a fault; it is outside the false-alarm budget, and small beside it."""
_SHOWN = 50
_Breaches: TypeAlias = dict[str, str]
"""Descriptions of breaches, by arm and request id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """One rule and the answers that break it."""

    rule: AnswerRule
    broken: _Breaches
    peers: _Breaches
    """Answers of the baseline and the control that break it."""
    answers: int
    peer_answers: int

    @property
    def is_finding(self) -> bool:
        """True if the variant breaks the rule and the baseline does not.

        A rule that chance may break has to be broken in far more answers than the baseline's.
        """
        if not self.rule.by_chance:
            return bool(self.broken) and not self.peers
        p_value = proportions.greater_than_other(len(self.broken), self.answers, len(self.peers), self.peer_answers)
        return p_value <= _BY_CHANCE


def judge(run: CapturedRun) -> Verdict:
    """Return the verdict on the variant's answers by rules without scores.

    All answers of the run count, whatever their workload. In this order: refused requests, the rules, the speculation counters, workload by
    workload, the rules of ends, and whether the run speculates at all. A rule that the baseline breaks is left out, unless it is one that
    chance may break and the variant breaks it far more often.
    """
    results = [_check_rule(run.whole, rule) for rule in RULES]
    return (
        refusal(run.whole)
        or _fail_rules(run, results)
        or _fail_counters(run)
        or check_endings(run.whole)
        or speculating(_add_part_counters(run), needs_rejections=False)
        or _pass_invariants(run, results)
    )


def _add_part_counters(run: CapturedRun) -> Captured:
    """Return the whole run with the summed speculation counters of its workloads.

    Accepted draft tokens of some workloads show that the server speculates, though others have no counters, after a restart for instance.
    The whole is returned as it is if it has counters, or if the sum shows no accepted draft token.
    """
    whole = run.whole
    if whole.speculative.counters is not None:
        return whole
    counted = sum((part.speculative.counters or SpecCounters() for part in run.parts), SpecCounters())
    return replace(whole, speculative=replace(whole.speculative, counters=counted)) if counted.accepted_tokens > 0 else whole


def _check_rule(whole: Captured, rule: AnswerRule) -> RuleResult:
    """Return the answers of the variant and of its peers that break ``rule``.

    Peers are the baseline and the control. Some rules compare an answer with others to the same request: the variant's is compared with
    both peers', the baseline's and the control's with each other's.
    """
    controls = whole.baseline_boots[1:]
    judged = list(_compare_answers(whole, whole.speculative, whole.baseline_boots))
    peers = [answer for arm in controls for answer in _compare_answers(whole, arm, (whole.baseline,))]
    peers += _compare_answers(whole, whole.baseline, controls)
    return RuleResult(
        rule=rule, broken=_list_breaches(rule, judged), peers=_list_breaches(rule, peers), answers=len(judged), peer_answers=len(peers)
    )


def _list_breaches(rule: AnswerRule, compared: Sequence[ComparedAnswer]) -> _Breaches:
    """Return the breaches of ``rule``, one per arm and request.

    Several passes of a request count as one, since they are no independent trials.
    """
    breaches = ((case, rule.breaks(case)) for case in compared)
    return {f"{case.arm} {case.answer.request_id}": what for case, what in breaches if what}


def _compare_answers(whole: Captured, transcript: Transcript, others: Sequence[Transcript]) -> Iterator[ComparedAnswer]:
    """Yield each answer of ``transcript`` with those of ``others`` to its request.

    ``others`` are boots of the baseline, of which answers of the same pass are taken. Only successful answers count.
    """
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
    """Return FAIL, named by the first rule that is a finding, or None.

    It is one that the variant breaks unlike the baseline. The name is the first rule's, since its breaches explain those of later ones.
    """
    findings = [result for result in results if result.is_finding]
    if not findings:
        return None
    first, count = findings[0], len(findings[0].broken)
    # A breach's key begins with its arm, which is the judged one in all of these.
    lines = [f"{name.partition(' ')[2]}: {what}" for name, what in first.broken.items()]
    more = [f"and {count - _SHOWN} more"] if count > _SHOWN else []
    others = ", ".join(f"{result.rule.name} in {len(result.broken)}" for result in findings[1:])
    return say(
        run.whole,
        Outcome.FAIL,
        f"{first.rule.name}: {count} of {first.answers} answers, {len(first.peers)} of {first.peer_answers} of the baseline's"
        + (f"; also {others}" if others else ""),
        short=(f"first        {lines[0]}",),
        evidence=(*lines[:_SHOWN], *more),
        cell=number_of(count, "answer"),
        names=first.rule.name,
        figures={"answers": float(first.answers), "broken_answers": float(count)},
    )


def _fail_counters(run: CapturedRun) -> Verdict | None:
    """Return FAIL if speculation counters contradict themselves or the answers.

    Returns None if those of no workload do, and for the control, which does not speculate.
    """
    if run.whole.is_control:
        return None
    breaches = [(part.workload.name, breach) for part in run.parts if (breach := find_counter_breach(part)) is not None]
    if not breaches:
        return None
    workload, first = breaches[0]
    lines = [f"{name}: {breach.what}" for name, breach in breaches]
    return say(
        run.whole,
        Outcome.FAIL,
        f"{first.name}: over {len(breaches)} of {len(run.parts)} workloads, first {workload}: {first.what}",
        short=(f"first        {lines[0]}",),
        evidence=lines,
        cell=number_of(len(breaches), "workload"),
        names=first.name,
        figures={"workloads": float(len(run.parts)), "broken_workloads": float(len(breaches))},
    )


def _pass_invariants(run: CapturedRun, results: Sequence[RuleResult]) -> Verdict:
    """Return PASS, or INVALID for a run without answers.

    The evidence lists the rules left out since the baseline breaks them.
    """
    answers = sum(answer.ok for answer in run.whole.speculative.answers)
    if not answers:
        return say(run.whole, Outcome.INVALID, "the run has no answers to judge")
    left_out = [result for result in results if result.peers and not result.rule.by_chance]
    rule_count = len(results) - len(left_out)
    lines = [f"left out, since the {BASELINE} breaks it: {result.rule.name}, {_describe_first(result.peers)}" for result in left_out]
    lines += [f"not answered by both arms: {name}" for name in run.missing]
    return say(
        run.whole,
        Outcome.PASS,
        f"{answers:,} answers of {len(run.parts)} workloads keep {rule_count} of {len(results)} rules, and those of how an answer ends",
        evidence=lines,
        rules_out=f"{answers:,} answers; a rule broken in more than {proportions.ruled_out(answers):.2%} would have been caught (99%)"
        + describe_untested_ends(run.whole),
        cell=f"{answers:,} answers",
        figures={"answers": float(answers), "workloads": float(len(run.parts)), "rules_left_out": float(len(left_out))},
    )


def _describe_first(broken: _Breaches) -> str:
    name, what = next(iter(broken.items()))
    return f"{name}: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswer:
    """One answer of one arm, with the baseline's own to the same request."""

    arm: str
    request: Request
    answer: Answer
    others: tuple[Answer, ...]
    """Answers of the baseline's other boots to the same request."""
    vocabulary: int
    draft_tokens: int
    """Draft tokens per verify step at most; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRule:
    """A rule, named by its breach."""

    name: str
    breaks: Callable[[ComparedAnswer], str]
    """Describes how an answer breaks it; empty if the answer keeps it."""
    by_chance: bool = False
    """Whether a correct server may break it now and then, since a model may write any text."""


_WRITTEN_SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_ ]{2,40}\|>|<\uff5c[^\uff5c<>]{2,40}\uff5c>|</?s>|<(?:eos|bos|pad|unk)>|<(?:start|end)_of_(?:turn|text)>|\[/?INST\]"
)
"""Names of special tokens in the vocabularies of common models: ChatML, Llama, Gemma, Mistral, DeepSeek."""
_REPLACEMENT = "\ufffd"


def _describe_prompt(case: ComparedAnswer) -> str:
    """Return a description of a prompt tokenised unlike the baseline's.

    It has another count of tokens by usage, or other reported token ids. Empty if it has not, if there is none to compare with, or if the
    baseline's boots themselves differ.
    """
    usage = case.answer.usage
    counts = {other.usage.prompt_tokens for other in case.others if other.usage}
    if usage is not None and len(counts) == 1 and usage.prompt_tokens not in counts:
        return f"usage counts {usage.prompt_tokens} prompt tokens, the baseline's {counts.pop()}"
    prompts = {other.prompt_token_ids for other in case.others if other.prompt_token_ids}
    differs = bool(case.answer.prompt_token_ids) and len(prompts) == 1 and case.answer.prompt_token_ids not in prompts
    return "the prompt is reported with other token ids than the baseline's" if differs else ""


def _describe_total(case: ComparedAnswer) -> str:
    """Return a description of a total that is not the sum; empty if it is, or is not given."""
    usage = case.answer.usage
    if usage is None or usage.total_tokens is None or usage.total_tokens == usage.prompt_tokens + usage.completion_tokens:
        return ""
    return f"usage counts {usage.prompt_tokens} + {usage.completion_tokens} tokens and {usage.total_tokens} in total"


def _describe_choices(case: ComparedAnswer) -> str:
    """Return a description of another number of choices than was requested; empty if it is right."""
    requested = case.request.body.get("n", 1)
    count = len(case.answer.choices)
    return f"{count} choices where n is {requested}" if isinstance(requested, int) and count != requested else ""


def _describe_vocabulary(case: ComparedAnswer) -> str:
    """Return a description of a token id beyond the vocabulary; empty without one, or if its size is unknown."""
    beyond = (token for choice in case.answer.choices for token in choice.token_ids if token >= case.vocabulary > 0)
    return next((f"token id {token} in a vocabulary of {case.vocabulary}" for token in beyond), "")


def _describe_window(case: ComparedAnswer) -> str:
    """Return a description of a verify step with more tokens than it can emit.

    Those are the draft tokens and one token more. Empty without such a step, and if the number of draft tokens is unknown.
    """
    most = case.draft_tokens + 1
    choices = case.answer.choices if case.draft_tokens else ()
    sizes = (size for choice in choices for size in choice.windows or ())
    return next((f"a verify step of {size} tokens, where {most - 1} are drafted" for size in sizes if size > most), "")


def _describe_ids(case: ComparedAnswer) -> str:
    """Return a description of ids that do not fit the text; empty if all do.

    The baseline's answers to the same request show it: one with the same text has these ids in another order, or another id among them.
    """
    if len(case.answer.choices) != 1:
        return ""
    singles = (other for other in case.others if len(other.choices) == 1)
    return next((what for other in singles if (what := _describe_misplaced_ids(case.answer.choice, other.choice))), "")


def _describe_misplaced_ids(choice: Choice, baseline: Choice) -> str:
    """Return a description of misplaced ids under an unchanged text.

    The ids are the baseline's in another order, or with one of them replaced. Empty for any other difference, since a text may have several
    tokenisations.
    """
    is_same_text = choice.written == baseline.written and bool(choice.written) and choice.finish_reason == baseline.finish_reason
    ids, baseline_ids = choice.token_ids, baseline.token_ids
    if not is_same_text or len(ids) != len(baseline_ids) or ids == baseline_ids or not ids:
        return ""
    differing = [index for index, pair in enumerate(zip(ids, baseline_ids, strict=True)) if len(set(pair)) > 1]
    if len(differing) > 1 and sorted(ids) != sorted(baseline_ids):
        return ""
    at = differing[0]
    return f"the text is the baseline's, but id {at} is {ids[at]} where the baseline has {baseline_ids[at]}"


def _describe_special(case: ComparedAnswer) -> str:
    """Return a description of a special token in the text.

    Empty without one, and if the request itself contains the token or asks for special tokens.
    """
    body_text = json.dumps(case.request.body, ensure_ascii=False, default=str)
    if case.request.body.get("skip_special_tokens") is False:
        return ""
    leaked = (
        match[0] for choice in case.answer.choices for match in _WRITTEN_SPECIAL.finditer(choice.written) if match[0] not in body_text
    )
    return next((f"the text has {quote(token)}" for token in leaked), "")


def _describe_characters(case: ComparedAnswer) -> str:
    """Return a description of broken characters (U+FFFD) in a text.

    Those at the end do not count, since a limit may have cut a character there. Empty without any, and if the request has one.
    """
    body_text = json.dumps(case.request.body, ensure_ascii=False, default=str)
    choices = () if _REPLACEMENT in body_text else case.answer.choices
    texts = (choice.written.rstrip(_REPLACEMENT) for choice in choices)
    return next((f"U+FFFD in {quote(text[max(0, text.index(_REPLACEMENT) - 10) :], 24)}" for text in texts if _REPLACEMENT in text), "")


RULES = (
    AnswerRule(name="usage counts another prompt", breaks=_describe_prompt),
    AnswerRule(name="usage does not add up", breaks=_describe_total),
    AnswerRule(name="choices are missing", breaks=_describe_choices),
    AnswerRule(name="a token id is outside the vocabulary", breaks=_describe_vocabulary),
    AnswerRule(name="a verify step emits more tokens than it can", breaks=_describe_window),
    AnswerRule(name="token ids and text disagree", breaks=_describe_ids, by_chance=True),
    AnswerRule(name="special tokens stand in the text", breaks=_describe_special, by_chance=True),
    AnswerRule(name="the text has broken characters", breaks=_describe_characters, by_chance=True),
)
"""The rules in the order in which a verdict names them: an earlier broken rule explains later ones."""


UNEVEN = "the speculation counters do not add up"
STILL = "the speculation counters stand still"
_ENOUGH = 20
"""Accepted tokens in the windows of answers beside which counters of 0 cannot be chance."""
_MOST_DRAFTED = 32
"""Tokens that a verify step may draft if no setting tells."""
_SLACK, _ROUNDED = 8, 0.05
"""Tokens, and fraction of the tokens, by which counters may be off if they were read from rounded log lines or estimated."""
_CHAINS = frozenset({DraftKind.MODEL, DraftKind.NGRAM})
"""Drafters that propose as many tokens as can be accepted; heads may propose a tree of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterBreach:
    """A contradiction of speculation counters with themselves or with the answers."""

    name: str
    what: str
    """The figures that contradict each other, in words."""


def find_counter_breach(part: Captured) -> CounterBreach | None:
    """Return the first breach of the counters of ``part``, one workload of the run.

    STILL if they stand still while the answers' windows show accepted draft tokens, all but one of each; UNEVEN if they do not add up.
    None without a breach, or if they may count other answers: others used the server, it restarted or failed, or an answer is missing.
    """
    transcript = part.speculative
    counters = transcript.counters
    is_disturbed = transcript.foreign or transcript.uncounted or transcript.replaced or transcript.restarts or transcript.server_failures
    if counters is None or is_disturbed or not all(answer.ok for answer in transcript.answers):
        return None
    accepted = sum(size - 1 for answer in transcript.answers for choice in answer.choices for size in choice.windows or ())
    if counters.drafts <= 0 and accepted >= _ENOUGH:
        return CounterBreach(name=STILL, what=f"{counters.drafts} drafts counted while the answers show {accepted} accepted draft tokens")
    what = next(_find_uneven_counts(counters, part), "") or _describe_excess_steps(counters, part)
    return CounterBreach(name=UNEVEN, what=what) if what else None


def _find_uneven_counts(counters: SpecCounters, part: Captured) -> Iterator[str]:
    """Yield descriptions of contradictions between counters.

    Differences up to 8 tokens and 5 % are passed over, since some engines round or estimate their counters. Drafted tokens are held against
    the number of drafts only for a drafter that proposes a chain of known length, not a tree of tokens.
    """
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


def _describe_excess_steps(counters: SpecCounters, part: Captured) -> str:
    """Return a description of counted steps beyond the answers' tokens.

    Each verify step emits its accepted draft tokens and one token more. Two whole steps per choice may be missing from the answers: a limit
    may cut the last one, and an engine that schedules a step ahead runs one after the end. Engines that look for stop strings in another
    process than the model's compute on until they are told to stop, up to the request's token limit. Empty if the counts agree, or if an
    answer has no known tokens.
    """
    answers, requests = part.speculative.answers, part.workload.by_id
    choices = sum(len(answer.choices) for answer in answers)
    tokens = [answer.usage.completion_tokens if answer.usage else sum(len(c.token_ids) for c in answer.choices) for answer in answers]
    answered, counted = sum(tokens), counters.drafts + counters.accepted_tokens
    stopping = [answer for answer in answers if requests[answer.request_id].body.get("stop")]
    stopped = [answer.request_id for answer in stopping for choice in answer.choices if choice.finish_reason == "stop"]
    after_stops = sum(requests[request_id].token_limit or math.inf for request_id in stopped)
    leeway = 2 * choices * ((part.pair.variant.draft.tokens or _MOST_DRAFTED) + 1) + after_stops
    if not all(tokens) or counted <= answered + leeway:
        return ""
    return f"steps of {counted} tokens counted, {answered} answered"

"""Images: requests with pictures are answered as without speculation, and so are the texts beside them.

The baseline cannot score tokens after images, since such a prompt is more than token ids. Answers at temperature 0 are held against its own
up to the first other token, by the log-probabilities that it reported there (judge/reported_distributions.py). ``captured`` has all answers
of both arms, ``part`` those that these reports score. Each check returns a verdict, or None to go on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_specdec.judge.accepting_steps import StepCount, count_steps
from pytest_specdec.judge.ending import check_endings
from pytest_specdec.judge.greedy import is_by_wrong_lengths, is_by_wrong_tokens, judge_scores
from pytest_specdec.judge.greedy_tally import tally_tokens
from pytest_specdec.judge.liveness import server_failure
from pytest_specdec.judge.prerequisites import describe_refusals, equal_answers, is_refusal, own_refusals, refusal, speculating
from pytest_specdec.judge.reported_distributions import score_by_reports
from pytest_specdec.judge.verdicts import quote, restate, say
from pytest_specdec.model.images import image_urls
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.transcript import FailureKind
from pytest_specdec.model.verdict import Example, Outcome, SharedCheck, Symptom
from pytest_specdec.stats import proportions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

_FAILS = {
    FailureKind.DIED: "an image takes the server down",
    FailureKind.HUNG: "the server hangs on an image",
    FailureKind.ERROR: "requests with images fail",
    FailureKind.REFUSED: "requests with images fail",
}
_TOGETHER = "several images in flight take the server down"
FAIL_ALONE = "requests with images fail"
WRONG = "requests with images are answered wrongly"
BESIDE = "texts beside an image are answered wrongly"
AGAIN = "the same image asked again is answered wrongly"
SWAPPED = "another image gets the answer to an earlier one"
EMPTY = "answers are empty where the baseline's are not"
DEAD = "no draft is accepted after an image"
_LEAST_EMPTY = 2
"""Prompts whose answers have to be empty for a fault."""
_LEAST_STEPS = 16
"""Verify steps after images from which on none with an accepted draft may be called a fault."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on requests with images and those beside them.

    A server that fails on an image, or refuses a request that the baseline answers, FAILs. Wrong ends come next. Tokens at temperature 0
    are counted as greedy's are, each answer up to its first other token, by the distribution that the baseline reported there. Drafts FAIL
    if none at all is accepted in 16 or more steps after images while those of texts are, by Fisher's exact test at the captured share of
    alpha; a lower rate alone is no fault. Of answers without known tokens only emptiness is seen: FAIL if those to two or more prompts are
    empty where every boot of the baseline writes text. REFUSED if neither arm takes images. INCONCLUSIVE if the baseline reports no
    log-probabilities.
    """
    return (
        _check_server(captured)
        or refusal(captured)
        or _check_refused(captured)
        or check_endings(captured)
        or _judge_answers(captured, score_by_reports(captured))
    )


def _judge_answers(captured: Captured, part: Captured) -> Verdict:
    """Return the first verdict on empty answers, missing reports and tokens."""
    unscored = _list_unscored(captured, part)
    return _check_empty(captured, unscored) or _check_reports(captured, part) or _judge_tokens(captured, part, unscored)


def _list_unscored(captured: Captured, part: Captured) -> tuple[Answer, ...]:
    """Return the judged arm's answers without known tokens.

    ``part`` has every answer that can be scored: the baseline's if it reported log-probabilities, and the arm's to the same requests if
    their tokens are known. So those that only the baseline has there lack tokens.
    """
    reported = {answer.key for answer in part.baseline.answers}
    scored = {answer.key for answer in part.speculative.answers}
    return tuple(answer for answer in captured.speculative.answers if answer.ok and answer.key in reported - scored)


def _check_empty(captured: Captured, unscored: Sequence[Answer]) -> Verdict | None:
    """Return FAIL if answers are empty where the baseline's are not.

    Of ``unscored``, the answers without known tokens, those without text count if every boot of the baseline writes some. None if they are
    to one prompt alone: the first token may then be a near-tie with an end, and no score tells.
    """
    written = [{answer.key for answer in boot.answers if answer.choice.written} for boot in captured.baseline_boots]
    empty = [answer for answer in unscored if not answer.choice.written and all(answer.key in keys for keys in written)]
    if len({captured.workload.by_id[answer.request_id].prompt_key for answer in empty}) < _LEAST_EMPTY:
        return None
    first, of_images = empty[0], sum(answer.request_id in _list_image_requests(captured) for answer in empty)
    return say(
        captured,
        Outcome.FAIL,
        f"{EMPTY}: {len(empty)} of {len(captured.speculative.answers)} answers, {of_images} of them to images; "
        f"first: request {first.request_id}",
        evidence=[f"empty        {answer.request_id}, {answer.reported_tokens} tokens by the server's count" for answer in empty],
        cell=f"{len(empty)} empty",
        names=EMPTY,
        example=Example(symptom=Symptom.ANSWER, request_id=first.request_id, pass_index=first.pass_index),
        figures={"empty_answers": float(len(empty))},
    )


def _list_image_requests(captured: Captured) -> frozenset[str]:
    """Return the ids of the requests with images."""
    return frozenset(request.id for request in captured.workload.requests if image_urls(request))


def _check_server(captured: Captured) -> Verdict | None:
    """Return the verdict on a server failure, named if an image brings it about.

    Of several such failures the one with the smallest group of requests gives the name. None without a failure.
    """
    # Without on_verdict nothing is reported yet: restate reports the verdict under its final name.
    verdict = server_failure(replace(captured, on_verdict=None))
    if verdict is None:
        return None
    images = _list_image_requests(captured)
    image_failures = [failure for failure in captured.speculative.server_failures if failure.recurred and failure.request_id in images]
    if verdict.outcome is not Outcome.FAIL or not image_failures:
        return restate(captured, verdict)
    smallest = min(image_failures, key=lambda failure: len(failure.group))
    dies_of_several = len(images & set(smallest.group)) > 1 and smallest.ending is FailureKind.DIED
    name = _TOGETHER if dies_of_several else _FAILS[smallest.ending]
    return restate(captured, verdict, headline=f"{name}: {verdict.headline}", names=name)


def _check_refused(captured: Captured) -> Verdict | None:
    """Return FAIL if requests are refused that the baseline answers, else None.

    REFUSED if the judged arm refuses every request with images, and the baseline as well.
    """
    images = _list_image_requests(captured)
    if wrong := own_refusals(captured):
        return _fail_refused(captured, wrong, images)
    replies = [answer for answer in captured.speculative.answers if answer.request_id in images]
    if not replies or not all(map(is_refusal, replies)):
        return None
    # None of these refusals is the arm's own: to each of the requests a boot of the baseline gives no answer either.
    first = replies[0]
    headline = f"images are not served here: all {len(replies)} requests with images were refused with {first.status}, by the baseline too"
    why = f"{headline}: {quote(first.error or '', 100)}"
    return say(captured, Outcome.REFUSED, why, evidence=describe_refusals(replies), cell=f"{first.status}")


def _fail_refused(captured: Captured, wrong: Sequence[Answer], images: Collection[str]) -> Verdict:
    """Return FAIL for refused requests that the baseline answers.

    ``wrong`` are their answers, and ``images`` the ids of requests with images.
    """
    first, of_images = wrong[0], sum(answer.request_id in images for answer in wrong)
    counted = f"{of_images} of {len(wrong)} with images; " if of_images < len(wrong) else ""
    return say(
        captured,
        Outcome.FAIL,
        f"{FAIL_ALONE}: {len(wrong)} of {len(captured.speculative.answers)} requests were refused with {first.status}, {counted}"
        f"the baseline answers them; first: request {first.request_id}: {quote(first.error or '', 100)}",
        evidence=describe_refusals(wrong),
        cell=f"{len(wrong)} refused",
        names=FAIL_ALONE,
        check=SharedCheck.SERVER,
        example=Example(symptom=Symptom.UNANSWERED, request_id=first.request_id),
        figures={"refused_requests": float(len(wrong))},
    )


def _check_reports(captured: Captured, part: Captured) -> Verdict | None:
    """Return a verdict if there is nothing to score tokens by, else None.

    The baseline has to report raw log-probabilities, those before penalties and temperature, and the judged arm its tokens. Without them a
    near-tie cannot be told from a wrong token. The verdict is INCONCLUSIVE then, or that of :func:`speculating` if the server did not
    speculate; no draft token needs to be rejected here.
    """
    capabilities = captured.capabilities.get(BASELINE)
    is_raw = capabilities is None or capabilities.raw_logprobs
    if is_raw and part.speculative.answers:
        return None
    equal = equal_answers(captured, captured.speculative)
    if not is_raw:
        reason = "the baseline reports log-probabilities after processing"
    elif part.baseline.answers:
        reason = f"{captured.arm} lists no tokens with its answers"
    else:
        reason = "the baseline lists no most probable tokens with its answers"
    return speculating(captured, needs_rejections=False) or say(
        captured,
        Outcome.INCONCLUSIVE,
        f"{sum(equal)} of {len(equal)} answers equal the baseline's; {reason}, so no other token can be judged",
        settle="serve raw logprobs and top_logprobs with chats",
        cell="not judged",
        figures={"answers": float(len(equal)), "answers_equal": float(sum(equal))},
    )


def _judge_tokens(captured: Captured, part: Captured, unscored: Sequence[Answer]) -> Verdict:
    """Return the verdict on the tokens of ``part``, and on dead drafts.

    The judge of the family greedy decides on tokens; a failure is named by the requests that have wrong ones. If it passes or is
    INCONCLUSIVE, the result is INVALID for ``unscored`` answers, those without known tokens, that differ from the baseline's, else FAIL if
    no draft is accepted after images.
    """
    verdict = judge_scores(part)
    if verdict.outcome is Outcome.FAIL:
        return restate(captured, verdict, **_name_wrong(captured, part, verdict))
    if verdict.outcome not in {Outcome.PASS, Outcome.INCONCLUSIVE}:
        return restate(captured, verdict)
    return (
        _check_unscored(captured, unscored)
        or _check_drafts(captured)
        or restate(
            captured,
            verdict,
            headline=f"{verdict.headline}; {_describe_traffic(captured)}",
            evidence=(*verdict.evidence, *_describe_unscored(unscored)),
        )
    )


def _check_unscored(captured: Captured, unscored: Sequence[Answer]) -> Verdict | None:
    """Return INVALID if an unscored answer differs from the baseline's, else None.

    ``unscored`` are the answers that the server gave without their tokens: their texts alone can be compared.
    """
    baseline_texts = {answer.key: answer.choice.written for answer in captured.baseline.answers if answer.ok}
    differing = [answer for answer in unscored if answer.choice.written != baseline_texts.get(answer.key)]
    if not differing:
        return None
    headline = f"{len(differing)} answers differ from the baseline's and were not scored; first: request {differing[0].request_id}"
    evidence = [f"not scored   {answer.request_id}: {quote(answer.choice.written, 100)}" for answer in differing]
    return say(captured, Outcome.INVALID, headline, evidence=evidence, settle=f"list tokens with all answers of {captured.arm}")


def _describe_unscored(unscored: Sequence[Answer]) -> tuple[str, ...]:
    """Return a line on answers that are the baseline's by their texts alone; empty without one."""
    return (f"not scored: {len(unscored)} answers without a list of tokens, their texts the baseline's",) if unscored else ()


def _name_wrong(captured: Captured, part: Captured, verdict: Verdict) -> Mapping[str, object]:
    """Return the fields to change in a failure, by its wrong requests.

    A wrong request has a wrong token or length in its answer. A line lists them, and the fault's name (``names``) says what they have in
    common: SWAPPED if all got the answer to an earlier image, AGAIN if all repeat an earlier request, BESIDE if none has an image, else
    WRONG. Name and headline are changed only if images may be to blame.
    """
    tally, images = tally_tokens(part), _list_image_requests(captured)
    with_wrong_tokens = [token.scored.answer.request_id for token in tally.wrong]
    with_wrong_lengths = [difference.key[0] for difference in tally.unexplained_lengths]  # a key is the request's id and the pass
    wrong = dict.fromkeys(with_wrong_tokens + with_wrong_lengths)  # an ordered set
    line = f"wrong        {', '.join(wrong)}"
    without_images = wrong.keys() - images
    # No image is to blame for a text that is wrong although nothing was in flight beside it.
    sent_alone = {turn[0].id for turn in captured.workload.turns if len(turn) == 1}
    is_by_requests = is_by_wrong_tokens(verdict) or is_by_wrong_lengths(verdict)  # False for a fault of the answers together
    if without_images & sent_alone or not wrong or not is_by_requests:
        return {"short": (*verdict.short, line)}
    if wrong.keys() <= _find_answers_to_others(captured, images):
        name = SWAPPED
    elif wrong.keys() <= _find_repeated_images(captured, images):
        name = AGAIN
    else:
        name = BESIDE if without_images == wrong.keys() else WRONG
    counted = f"{len(wrong)} of {len(captured.speculative.answers)} answers, {len(wrong.keys() & images)} of them to images"
    short = (*verdict.short[:3], line)  # a failed test's message has room for four lines
    return {"headline": f"{name}: {counted}; {verdict.headline}", "names": name, "short": short}


def _find_repeated_images(captured: Captured, image_ids: Collection[str]) -> set[str]:
    """Return those of ``image_ids``, the requests with images, equal to an earlier request."""
    first_ids: dict[str, str] = {}  # by ``asks``, the body as a text, images included and seed left out
    for request in captured.workload.requests:
        first_ids.setdefault(request.asks, request.id)
    return {request.id for request in captured.workload.requests if request.id in image_ids and first_ids[request.asks] != request.id}


def _find_answers_to_others(captured: Captured, images: Collection[str]) -> set[str]:
    """Return the ids of requests answered as an earlier one with another image.

    Such an answer may come from the earlier image's cache. The baseline has to answer the two requests differently.
    """
    baseline, arm = _texts(captured.baseline), _texts(captured.speculative)
    ordered = [request for request in captured.workload.requests if request.id in images and request.id in arm and request.id in baseline]
    return {
        later.id
        for index, later in enumerate(ordered)
        for earlier in ordered[:index]
        if later.asks != earlier.asks and arm[later.id] == arm[earlier.id] and baseline[later.id] != baseline[earlier.id]
    }


def _texts(arm: Transcript) -> dict[str, str]:
    return {answer.request_id: answer.choice.written for answer in arm.answers if answer.ok}


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepsByKind:
    """The verify steps of requests with images, and those of requests without."""

    images: StepCount
    texts: StepCount


def _count_by_kind(captured: Captured) -> _StepsByKind:
    """Return the verify steps of requests with images, and those of texts.

    Answers for which nothing was drafted have none: each of their tokens would be taken for a step that rejects a draft.
    """
    images = _list_image_requests(captured)
    answers = [answer for answer in captured.speculative.answers if answer.ok and _may_draft(answer)]
    return _StepsByKind(
        images=count_steps(captured, [answer for answer in answers if answer.request_id in images]),
        texts=count_steps(captured, [answer for answer in answers if answer.request_id not in images]),
    )


def _may_draft(answer: Answer) -> bool:
    """Return False if it is known that nothing was drafted for an answer."""
    return answer.choice.drafted is None or any(answer.choice.drafted)


def _check_drafts(captured: Captured) -> Verdict | None:
    """Return FAIL if no draft is accepted after images, else None.

    Drafts of texts must be accepted more often by Fisher's exact test at ``captured.alpha``. A lower rate alone is no fault, since a
    drafter that does not see images may well be wrong more often after them; nor is it one to draft nothing there. None also for the
    control, which does not draft, and for fewer than 16 verify steps after images.
    """
    steps = _count_by_kind(captured)
    if captured.is_control or steps.images.accepting or steps.images.steps < _LEAST_STEPS:
        return None
    p_value = proportions.greater_than_other(steps.texts.accepting, steps.texts.steps, 0, steps.images.steps)
    if p_value > captured.alpha:
        return None
    return say(
        captured,
        Outcome.FAIL,
        f"{DEAD}: {steps.images}, of texts in the same run {steps.texts}",
        short=(f"by chance    p = {p_value:.2g}",),
        cell="dead drafts after images",
        names=DEAD,
        figures={"steps_after_images": float(steps.images.steps), "p_value": p_value},
    )


def _describe_traffic(captured: Captured) -> str:
    """Return a clause on the requests with images and their drafts.

    It counts those that are answered, and leaves drafts out for the control and if no such answer tells its drafts.
    """
    images = _list_image_requests(captured)
    answered = [answer for answer in captured.speculative.answers if answer.ok and answer.request_id in images]
    if captured.is_control or all(answer.choice.drafted is None for answer in answered):
        return f"{len(answered)} requests with images"
    steps = _count_by_kind(captured)
    return f"{len(answered)} requests with images: {steps.images}; of texts {steps.texts}"

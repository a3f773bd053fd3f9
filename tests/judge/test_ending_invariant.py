"""An answer that differs from the baseline's without a wrong token is red, unless a tie or an end within tolerance explains it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from pytest_specdec.judge import greedy
from pytest_specdec.model.transcript import Position, Score, Usage
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import VARIANT, a_workload, answer, captured, requests
from tests.judge.toy_server import opinion

EOS = 0
MOST = 24
TOLERANCE = 0.25
ANSWERS = 10


def distribution(context):
    """The best and the next token after ``context``, and how many nats lie between them; one step in eight likes to end."""
    best, other, luck = opinion("invariant", context)
    best, other = 1 + best % 12, 1 + (best + 1 + other % 11) % 12
    ends = context and opinion("end", context)[2] < 0.04
    gap = 0.12 if luck < 0.15 else 0.5 + luck
    return (EOS if ends else best), (EOS if luck < 0.08 and not ends else other), gap


def going_on(i, ids, limit=MOST):
    """Return the greedy continuation of ``ids`` up to an end of sequence or the limit."""
    out = list(ids)
    while len(out) < limit and (not out or out[-1] != EOS):
        out.append(distribution([i, *out])[0])
    return tuple(out)


def said(i, ids, finish=None):
    reason = finish or ("stop" if ids and ids[-1] == EOS else "length")
    usage = Usage(prompt_tokens=1, completion_tokens=len(ids))
    return answer(f"chat-{i:02}", ids, finish=reason, text=" ".join(map(str, ids)), usage=usage)


def positions(i, ids):
    for at, token in enumerate(ids):
        best, other, gap = distribution([i, *ids[:at]])
        top = math.log(0.6)
        logprob = {best: top, other: top - gap}.get(token, top - 5.0)
        yield Position(token_id=token, logprob=logprob, top_ids=(best, other), top_logprobs=(top, top - gap))


def scores(arm, answers):
    return tuple(
        Score(request_id=each.request_id, arm=arm, under="baseline", positions=tuple(positions(i, each.choice.token_ids)))
        for i, each in enumerate(answers)
    )


THEIRS = [said(i, going_on(i, ())) for i in range(ANSWERS)]


def lawful(i, ids, finish):
    """Whether every token is the best or nearly so on its own prefix, and the end is one."""
    gaps = [max(p.top_logprobs) - p.logprob for p in positions(i, ids)]
    whole = EOS not in ids[:-1] and finish == ("stop" if ids and ids[-1] == EOS else "length" if len(ids) == MOST else None)
    return whole and all(gap <= TOLERANCE for gap in gaps)


def explained(i, ids, finish):
    """Whether the first difference from the baseline's own answer is a tie within tolerance; none needs explaining."""
    theirs = THEIRS[i].choice
    if (ids, finish) == (theirs.token_ids, theirs.finish_reason):
        return True
    at = next((n for n, (a, b) in enumerate(zip(ids, theirs.token_ids, strict=False)) if a != b), None)
    if at is None:
        return False
    found = list(positions(i, ids))[at]
    return max(found.top_logprobs) - found.logprob <= TOLERANCE


@st.composite
def served(draw, i):
    """One answer: the baseline's own, or one changed at some token, in how it goes on, where it stops, or what it says of it."""
    own = THEIRS[i].choice.token_ids
    at = draw(st.integers(0, len(own)))
    how = draw(st.sampled_from(["own", "own", "own", "other", "cut", "cut and lie", "past", "reason"]))
    if how == "other":
        other = distribution([i, *own[:at]])[1]
        return (ids := going_on(i, (*own[:at], other)[:MOST])), "stop" if ids[-1] == EOS else "length"
    if how in {"cut", "cut and lie"}:
        return own[:at], "stop" if how == "cut" else "length"
    if how == "past":
        return (*own, *going_on(i, (3,), MOST))[:MOST], draw(st.sampled_from(["stop", "length"]))
    return own, draw(st.sampled_from(["stop", "length"])) if how == "reason" else THEIRS[i].choice.finish_reason


@given(st.tuples(*(served(i) for i in range(ANSWERS))))
def test_what_differs_without_a_wrong_token_is_red_unless_it_is_explained(answers):
    mine = [said(i, ids, finish) for i, (ids, finish) in enumerate(answers)]
    known = {VARIANT: scores(VARIANT, mine), "baseline": scores("baseline", THEIRS), "control": scores("control", THEIRS)}
    workload = a_workload(requests(ANSWERS, max_tokens=MOST))
    verdict = greedy.judge(captured("greedy", mine, THEIRS, THEIRS, scores=known, workload=workload, alpha=0.0))
    if not all(explained(i, *each) for i, each in enumerate(answers)):
        assert verdict.outcome is Outcome.FAIL
    if all(lawful(i, *each) for i, each in enumerate(answers)):
        assert verdict.outcome is not Outcome.FAIL


def test_the_baseline_of_this_test_stops_and_is_cut_both():
    reasons = [each.choice.finish_reason for each in THEIRS]
    assert 3 <= reasons.count("stop") <= ANSWERS - 2

"""How long an answer is waited for: what the baseline needed for it decides, or the arm's own pace, and never more than the limit."""

from __future__ import annotations

import pytest

from pytest_specdec.capture.deadlines import COMPILING_S, FLOOR_S, Deadlines
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Answer, Choice, Transcript
from pytest_specdec.model.workload import Request, Route

ASKED = Request(id="a", route=Route.COMPLETIONS, body={"prompt": "x" * 100, "max_tokens": 50})
LIMIT_S = 600.0


def answer(seconds, tokens=50, status=200):
    timing = Timing(sent_s=10.0, first_s=None, done_s=10.0 + seconds)
    return Answer(request_id="a", status=status, choices=(Choice(token_ids=tuple(range(tokens))),), timing=timing)


def of(*answers, limit_s=LIMIT_S, slowest_s=0.5, request=ASKED, paced=True):
    baseline = Transcript(arm="baseline", boot=0, workload="w", digest="", answers=answers) if answers else None
    return Deadlines(limit_s, baseline, paced=paced).deadline_of(request, 0, slowest_s)


@pytest.mark.parametrize(
    "needed_s, tokens, slowest_s, seconds",
    [
        (0.1, 50, 0.5, FLOOR_S),
        (3.0, 50, 0.5, 30.0),
        (3.0, 25, 0.5, 60.0),  # a longer answer than the baseline's is allowed
        (0.1, 50, 0.0, COMPILING_S),  # nothing answered yet: kernels may be compiled
        (0.1, 50, 12.0, 60.0),  # five times the slowest answer so far
        (90.0, 50, 0.5, LIMIT_S),
    ],
)
def test_ten_times_what_the_baseline_needed(needed_s, tokens, slowest_s, seconds):
    assert of(answer(needed_s, tokens), slowest_s=slowest_s).seconds == pytest.approx(seconds)


def test_beside_other_servers_every_answer_may_take_a_compilation():
    baseline = Transcript(arm="baseline", boot=0, workload="w", digest="", answers=(answer(0.1),))
    deadlines = Deadlines(LIMIT_S, baseline, paced=True, shares_machine=True)
    assert deadlines.deadline_of(ASKED, 0, 0.5).seconds == COMPILING_S


def test_the_reason_is_said_unless_it_is_the_limit():
    assert of(answer(0.1)).reason == "the baseline needed 0.1 s"
    assert of(answer(90.0)).reason == ""
    assert of(answer(0.1), limit_s=5.0).seconds == 5.0


@pytest.mark.parametrize(
    "request_",
    [Request(id="b", route=Route.CHAT, body={"max_tokens": 5}), Request(id="a", route=Route.CHAT, body={})],
    ids=["unknown", "open"],
)
def test_where_the_baselines_need_says_nothing_the_limit_holds(request_):
    assert of(answer(0.1), request=request_).seconds == LIMIT_S
    assert of(answer(0.1, status=500)).seconds == LIMIT_S


def test_without_a_baseline_the_arms_own_pace_in_the_workload_holds():
    deadlines = Deadlines(LIMIT_S, None, paced=True)
    assert deadlines.deadline_of(ASKED, 0, 0.5).seconds == LIMIT_S
    deadlines.learn(ASKED, answer(0.1))
    assert deadlines.deadline_of(ASKED, 0, 0.1).seconds == COMPILING_S
    deadlines.learn(ASKED, answer(8.0))
    assert deadlines.deadline_of(ASKED, 0, 8.0).seconds == pytest.approx(80.0)
    longer = Request(id="c", route=Route.COMPLETIONS, body={"prompt": "x" * 100, "max_tokens": 500})
    assert deadlines.deadline_of(longer, 0, 8.0).seconds > 400.0
    assert deadlines.deadline_of(ASKED, 0, 8.0).reason == "at this arm's pace it needs 8 s"


def test_the_baseline_itself_has_the_limit():
    deadlines = Deadlines(LIMIT_S, None, paced=False)
    deadlines.learn(ASKED, answer(0.1))
    assert deadlines.deadline_of(ASKED, 0, 0.1).seconds == LIMIT_S

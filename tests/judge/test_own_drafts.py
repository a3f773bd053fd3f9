"""Rejected drafts are held against what the drafter alone proposes: only those count that it gets right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.own_drafts import NAME, own_drafts
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import SpecCounters
from pytest_specdec.model.verdict import Outcome
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, captured, requests, score

WINDOWS = (1, 2, 4, 1, 3, 2, 4, 3)
"""Rejections at tokens 2, 7, 10 and 12, counted from 0; token 6 is a bonus token and the last window is left out."""
REJECTED = (2, 7, 10, 12)
COUNT = 20
FULL = SpecCounters(drafts=140, draft_tokens=420, accepted_tokens=200)


def seen(right=(), *, count=COUNT, right_in=COUNT, windows=WINDOWS, drafted=None, counters=FULL, workload=None, pair=None, scored=True):
    """Answers of a variant whose draft model alone proposes the emitted token at ``right``, and another one at all other rejections."""
    mine = [answer(f"chat-{i:02}", range(20), windows=windows, drafted=drafted) for i in range(count)]
    wrong = [{at: 3.0 for at in REJECTED if at not in right or i >= right_in} for i in range(count)]
    own = tuple(score(VARIANT, each, gaps.items(), under="draft") for each, gaps in zip(mine, wrong, strict=True))
    return captured(
        "speed",
        mine,
        mine,
        mine,
        counters=counters,
        workload=workload or a_workload(requests(count)),
        pair=pair,
        alpha=1e-3,
        draft_scores={VARIANT: own} if scored else {},
    )


def test_drafts_that_the_drafter_gets_right_and_the_server_rejects_fail():
    verdict = speed.judge(seen(right=(2, 10)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, NAME)
    assert verdict.figures == {"rejected_drafts": 80.0, "rejected_right_drafts": 40.0}
    assert "request chat-00, token 3" in verdict.headline


def test_drafts_that_are_wrong_alone_too_pass_and_are_counted():
    verdict = speed.judge(seen())
    assert verdict.outcome is Outcome.PASS
    assert "drafter: 0 of 80 rejected draft tokens are in place of one that the drafter alone gets right" in verdict.evidence


def test_one_in_four_is_the_line_and_few_are_none():
    """Near-ties of the drafter flip its choice now and then."""
    assert speed.judge(seen(right=(2,), count=19)).outcome is Outcome.PASS, "19 of 76 are too few"
    assert speed.judge(seen(right=(2,))).outcome is Outcome.FAIL, "20 of 80"
    assert speed.judge(seen(right=(2,), count=24, right_in=20)).outcome is Outcome.PASS, "20 of 96 are less than a quarter"


def test_drafts_of_prompt_lookup_follow_from_the_tokens():
    pair = a_pair(kind=DraftKind.NGRAM)
    text = (1, 2, 3, 4, 5, 6) * 4
    mine = [answer(f"chat-{i:02}", text, windows=(1,) + (1,) * 22 + (1,)) for i in range(COUNT)]
    found = own_drafts(captured("speed", mine, mine, mine, pair=pair, workload=a_workload(requests(COUNT))))
    assert found is not None
    assert (found.rejected, found.right) == (17 * COUNT, 15 * COUNT), "twice the prompt's own 1 2 3 comes first, which goes on otherwise"


@pytest.mark.parametrize("body", [{"temperature": 0.5}, {"presence_penalty": 1.0}, {"response_format": {"type": "json_object"}}])
def test_requests_that_bend_the_distribution_say_nothing_of_the_drafter(body):
    assert own_drafts(seen(right=REJECTED, workload=a_workload(requests(COUNT, **body)))) is None


def test_where_the_drafter_or_the_length_of_its_drafts_is_unknown_nothing_is_said():
    short = SpecCounters(drafts=140, draft_tokens=300, accepted_tokens=200)
    assert own_drafts(seen(right=REJECTED, scored=False)) is None
    assert own_drafts(seen(right=REJECTED, pair=a_pair(kind=DraftKind.HEAD))) is None
    assert own_drafts(seen(right=REJECTED, windows=None)) is None
    assert own_drafts(seen(right=REJECTED, windows=(1,))) is None
    assert own_drafts(seen(right=REJECTED, counters=short)) is None
    assert own_drafts(seen(right=REJECTED, counters=None)) is None


def test_a_shorter_draft_is_no_rejection_where_answers_tell_its_length():
    found = own_drafts(seen(right=REJECTED, drafted=(1, 3, 0, 2, 3, 3, 3), counters=None))
    assert found is not None
    assert (found.rejected, found.right) == (COUNT, COUNT), "of four short windows only the fifth ended before its draft did"


def test_scores_of_other_tokens_say_nothing():
    given = seen(right=REJECTED)
    other = tuple(replace(each, positions=each.positions[:-1]) for each in given.draft_scores[VARIANT])
    assert own_drafts(replace(given, draft_scores={VARIANT: other})) is None

"""Rejected drafts are held against what the drafter alone proposes: only those count that it gets right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import speed
from pytest_specdec.judge.acceptance.drafter_quality import TOLERATED, WORSE_DRAFTS, rejected_drafts
from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.captured import ReportedDraws
from pytest_specdec.model.pair import DraftKind
from pytest_specdec.model.transcript import Position, SpecCounters
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.stats.proportions import greater_than_rate
from tests.judge.captured_values import VARIANT, a_pair, a_workload, answer, captured, requests, score

WINDOWS = (1, 2, 4, 1, 3, 2, 4, 3)
"""Rejections at tokens 2, 7, 10 and 12, counted from 0; token 6 is a bonus token and the last window is left out."""
REJECTED = (2, 7, 10, 12)
COUNT = 20
FULL = SpecCounters(drafts=140, draft_tokens=420, accepted_tokens=200)


def seen(
    right=(), *, count=COUNT, right_in=COUNT, windows=WINDOWS, drafted=None, counters=FULL, workload=None, pair=None, scored=True, lead=2.0
):
    """Answers of a variant whose draft model alone proposes the emitted token at ``right``, and another one at all other rejections."""
    mine = [answer(f"chat-{i:02}", range(20), windows=windows, drafted=drafted) for i in range(count)]
    wrong = [{at: 3.0 for at in REJECTED if at not in right or i >= right_in} for i in range(count)]
    sure = {"p_best": 0.5, "others": ((900, 0.5 * math.exp(-lead)),)}
    own = tuple(score(VARIANT, each, gaps.items(), under="draft", **sure) for each, gaps in zip(mine, wrong, strict=True))
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


def calibration(noise):
    """Tokens of probability 1/2 beside one of 2/5: their weight is 1 - 1 + 0.41."""
    listed = Position(token_id=1, logprob=math.log(0.5), top_ids=(1, 2), top_logprobs=(math.log(0.5), math.log(0.4)))
    return ReportedDraws(answers=(tuple((listed.logprob + (-1) ** i * noise * math.sqrt(0.41), listed) for i in range(100)),))


def test_drafts_that_the_drafter_gets_right_and_the_server_rejects_fail():
    verdict = speed.judge(seen(right=(2, 10)))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, WORSE_DRAFTS)
    assert (verdict.figures["rejected_drafts"], verdict.figures["rejected_right_drafts"]) == (80, 40)
    assert "request chat-00, token 3" in verdict.headline


def test_drafts_that_are_wrong_alone_too_pass_and_are_counted():
    verdict = speed.judge(seen())
    assert verdict.outcome is Outcome.PASS
    assert "drafter: 0 of 80 rejected draft tokens are in place of one that the drafter alone gets right" in verdict.evidence


def test_more_than_one_in_twenty_beyond_chance_is_the_line():
    """At a share of 1e-3, which a gate beside it halves."""
    assert speed.judge(seen(right=(2,), right_in=11)).outcome is Outcome.PASS, "11 of 80: p = 2e-3"
    assert speed.judge(seen(right=(2,), right_in=12)).outcome is Outcome.FAIL, "12 of 80: p = 6e-4"
    gate = Gate(figure="acceptance_length", at_least=1.0, source="tiny.yaml:9 gates.acceptance_length")
    assert speed.judge(replace(seen(right=(2,), right_in=12), gates=(gate,))).names != WORSE_DRAFTS


def test_where_the_drafter_hardly_prefers_its_token_a_lost_draft_proves_nothing():
    """A drafter that agrees in most places is rejected where it wavers, and there another batch turns its choice."""
    torn = rejected_drafts(seen(right=REJECTED, lead=0.45))
    assert torn is not None
    assert (torn.count, torn.avoidable) == (80, 0)
    for noise, right in ((0.12, 0), (0.05, 80)):
        given = replace(seen(right=REJECTED, lead=0.9), calibration=calibration(noise))
        assert rejected_drafts(given).avoidable == right, f"8 x {noise} nats"


@pytest.mark.statistics(quick=True)
@pytest.mark.parametrize("agreement", [0.85, 0.96])
def test_a_good_drafter_whose_batches_are_noisy_is_no_worse_than_its_own(agreement):
    """Drafter and target with logits a little apart: rejections of a correct server at noise of 0.1 nats, and those of stale drafts."""
    random = np.random.default_rng(3)
    target = 2.0 * random.gumbel(size=(12_000, 40))
    drafter = target + {0.85: 0.4, 0.96: 0.12}[agreement] * random.gumbel(size=target.shape)
    drafted, alone = ((drafter + 0.1 * random.standard_normal(target.shape)) for _ in range(2))
    wanted, ranked = target.argmax(axis=1), np.sort(alone, axis=1)
    assert (drafter.argmax(axis=1) == wanted).mean() == pytest.approx(agreement, abs=0.02)
    is_right = (alone.argmax(axis=1) == wanted) & (ranked[:, -1] - ranked[:, -2] > 8.0 * 0.1)
    rejected = drafted.argmax(axis=1) != wanted
    stale = random.permutation(drafted.argmax(axis=1)) != wanted
    by_chance = [greater_than_rate(int(is_right[lost][:400].sum()), min(400, int(lost.sum())), TOLERATED) for lost in (rejected, stale)]
    assert by_chance[0] > 0.1
    assert by_chance[1] < 1e-9


def test_drafts_of_prompt_lookup_follow_from_the_tokens():
    pair = a_pair(kind=DraftKind.NGRAM)
    text = (1, 2, 3, 4, 5, 6) * 4
    mine = [answer(f"chat-{i:02}", text, windows=(1,) + (1,) * 22 + (1,)) for i in range(COUNT)]
    found = rejected_drafts(captured("speed", mine, mine, mine, pair=pair, workload=a_workload(requests(COUNT))))
    assert found is not None
    assert (found.count, found.avoidable) == (17 * COUNT, 15 * COUNT), "twice the prompt's own 1 2 3 comes first, which goes on otherwise"


@pytest.mark.parametrize("body", [{"temperature": 0.5}, {"presence_penalty": 1.0}, {"response_format": {"type": "json_object"}}])
def test_requests_that_bend_the_distribution_say_nothing_of_the_drafter(body):
    assert rejected_drafts(seen(right=REJECTED, workload=a_workload(requests(COUNT, **body)))) is None


def test_where_the_drafter_or_the_length_of_its_drafts_is_unknown_nothing_is_said():
    short = SpecCounters(drafts=140, draft_tokens=300, accepted_tokens=200)
    assert rejected_drafts(seen(right=REJECTED, scored=False)) is None
    assert rejected_drafts(seen(right=REJECTED, pair=a_pair(kind=DraftKind.HEAD))) is None
    assert rejected_drafts(seen(right=REJECTED, windows=None)) is None
    assert rejected_drafts(seen(right=REJECTED, windows=(1,))) is None
    assert rejected_drafts(seen(right=REJECTED, counters=short)) is None
    assert rejected_drafts(seen(right=REJECTED, counters=None)) is None


def test_a_shorter_draft_is_no_rejection_where_answers_tell_its_length():
    found = rejected_drafts(seen(right=REJECTED, drafted=(1, 3, 0, 2, 3, 3, 3), counters=None))
    assert found is not None
    assert (found.count, found.avoidable) == (COUNT, COUNT), "of four short windows only the fifth ended before its draft did"


def test_scores_of_other_tokens_say_nothing():
    given = seen(right=REJECTED)
    other = tuple(replace(each, positions=each.positions[:-1]) for each in given.draft_scores[VARIANT])
    assert rejected_drafts(replace(given, draft_scores={VARIANT: other})) is None

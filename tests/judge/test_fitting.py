from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import fitting
from pytest_specdec.judge.conditionals import gather
from pytest_specdec.model.transcript import Transcript
from pytest_specdec.stats import fitted
from pytest_specdec.stats.observed import NOBODY
from tests.judge import toy_speculation as toy


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(fitted, "FEWEST", 20)


def head(**fields):
    """A head's answers, with the baseline's to the same requests."""
    one = toy.captured("head", answers=12, **fields)
    said = tuple(replace(answer, choices=(replace(answer.choice, windows=None),)) for answer in one.speculative.answers[::-1])
    booted = Transcript(arm="baseline", boot=0, workload="w", digest="d", answers=said)
    scores = tuple(toy.score(answer, "baseline", "baseline", toy.TARGET) for answer in said)
    return replace(one, baseline=booted, scores={**one.scores, "baseline": scores})


def law(one):
    return gather(one).observed.fitted


def test_it_stands_where_the_drafts_law_does_not():
    assert law(head()).shape == gather(head()).observed.law.p.shape
    assert law(toy.captured("model", answers=4)) is None


def test_the_first_answer_is_told_nothing_and_later_ones_by_all_arms():
    one = head()
    observed = gather(one).observed
    length = len(one.speculative.answers[0].choice.token_ids)
    assert observed.fitted[:length] == pytest.approx(observed.law.unasked[:length])
    assert not np.allclose(observed.fitted[length:], observed.law.unasked[length:])
    alone = law(replace(one, scores={one.arm: one.scores[one.arm]}))
    assert not np.allclose(alone[length:], observed.fitted[length:])


def test_an_answer_to_the_same_request_has_no_say():
    one = head()
    length = len(one.speculative.answers[0].choice.token_ids)
    fourth = one.speculative.answers[3].key
    scores = tuple(score for score in one.scores["baseline"] if score.key != fourth)
    without = law(replace(one, scores={**one.scores, "baseline": scores}))
    assert (without[: 4 * length] == law(one)[: 4 * length]).all()
    assert not np.allclose(without[4 * length :], law(one)[4 * length :])


def test_scores_of_other_tokens_than_were_answered_tell_nothing():
    one = head()
    other = tuple(replace(score, positions=score.positions[1:]) for score in one.scores["baseline"])
    spoilt = replace(one, scores={**one.scores, "baseline": other})
    assert law(spoilt) == pytest.approx(law(replace(one, scores={one.arm: one.scores[one.arm]})))


def test_the_control_does_not_tell_of_itself_twice():
    one = head()
    control = replace(one.baseline, arm="control")
    scores = {**one.scores, "control": tuple(replace(score, arm="control") for score in one.scores["baseline"])}
    judged = replace(one, control=control, scores=scores).as_control()
    told = fitting.law
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "law", lambda judged, arms, vocabulary: seen.append(arms) or told(judged, arms, vocabulary))
        law(judged)
    assert len(seen[0]) == 2


def test_the_prompts_last_tokens_come_before_an_answers_first():
    one = head().speculative.answers[0]
    bare = replace(one, prompt_token_ids=(4, 5, 6), choices=(replace(one.choice, token_ids=(7, 8, 9)),))
    assert fitting._before([bare]).tolist() == [[6, 5], [7, 6], [8, 7]]
    assert fitting._before([replace(bare, prompt_token_ids=())]).tolist() == [[NOBODY, NOBODY], [7, NOBODY], [8, 7]]


def test_a_cold_request_has_a_cold_draft():
    one = head()
    requests = tuple(replace(request, body={**request.body, "temperature": 0.5}) for request in one.workload.requests)
    cold = law(replace(one, workload=replace(one.workload, requests=requests)))
    squared = law(one) ** 2
    assert cold == pytest.approx(squared / squared.sum(axis=1, keepdims=True))


def test_scores_without_numbers_tell_nothing():
    one = head()
    spoilt = []
    for score in one.scores["baseline"]:
        first = replace(score.positions[0], atom_logprobs=(*score.positions[0].atom_logprobs[:-1], float("nan")))
        spoilt.append(replace(score, positions=(first, *score.positions[1:])))
    found = law(replace(one, scores={**one.scores, "baseline": tuple(spoilt)}))
    assert found == pytest.approx(law(replace(one, scores={one.arm: one.scores[one.arm]})))


def test_the_coldest_request_that_is_judged_has_a_law():
    requests = tuple(replace(request, body={**request.body, "temperature": 0.01}) for request in head().workload.requests)
    one = replace(head(), workload=replace(head().workload, requests=requests))
    assert np.isfinite(law(one)).all()
    assert law(one).sum(axis=1) == pytest.approx(1.0)

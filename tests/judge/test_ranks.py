"""Ranks: one that accepts or drafts nothing while the others do is found, and ranks that only differ are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.drafting.ranks import compare_ranks, describe_uncompared
from pytest_specdec.model.spec_counters import RankCounters, SpecCounters, sum_ranks
from pytest_specdec.model.workload import Workload
from tests.judge.captured_runs import a_part, a_run
from tests.judge.captured_values import answer, requests


def rank(name, drafts, accepted, tokens=None, first=None):
    by_position = (accepted if first is None else first,)
    counters = SpecCounters(drafts=drafts, draft_tokens=3 * drafts, accepted_tokens=accepted, accepted_per_position=by_position)
    return RankCounters(name=name, counters=counters, generated_tokens=tokens)


def findings(*ranks, parts=1):
    workload = Workload(name="plain", version=1, requests=requests(2))
    answers = [answer(request.id, range(24)) for request in workload.requests]
    part = a_part(workload, answers, answers, family="speed")
    part = replace(part, speculative=replace(part.speculative, ranks=ranks))
    return list(compare_ranks(a_run(*[part] * parts).parts))


def striking(*ranks, parts=1):
    return [(each.name, each.subject) for each in findings(*ranks, parts=parts) if each.is_striking]


def test_a_rank_that_accepts_nothing_is_found_by_its_blocks_of_drafts():
    found = findings(rank("a", 400, 250), rank("b", 400, 0))
    (finding,) = [each for each in found if each.is_striking]
    assert (finding.name, finding.subject) == ("a rank accepts nothing while the others do", "rank b")
    assert (finding.bad, finding.p_value) == (12, pytest.approx(0.5**12))
    assert finding.headline == "a rank accepts nothing while the others do: b: 0 of 400 drafts accepted, 250 of 400 by the others"


def test_acceptance_below_a_tenth_is_nothing_and_above_it_is_not():
    assert striking(rank("a", 4000, 2000), rank("b", 4000, 40)) == [("a rank accepts nothing while the others do", "rank b")]
    assert striking(rank("a", 4000, 2000), rank("b", 4000, 400)) == []


def test_ranks_that_draft_for_their_tokens_alike_are_no_finding():
    assert striking(rank("a", 400, 250, tokens=650), rank("b", 40, 30, tokens=70)) == []


def test_a_rank_that_drafts_nothing_for_its_tokens_is_found():
    assert striking(rank("a", 400, 250, tokens=650), rank("b", 0, 0, tokens=600)) == [
        ("a rank drafts nothing while the others do", "rank b")
    ]


def test_a_rank_without_requests_has_nothing_to_show():
    assert findings(rank("a", 400, 250, tokens=650), rank("b", 0, 0, tokens=0)) == []


def test_one_source_and_ranks_that_all_draft_nothing_are_not_compared():
    assert findings() == findings(rank("a", 400, 0)) == findings(rank("a", 0, 0), rank("b", 0, 0)) == []


def test_counts_are_added_up_over_workloads():
    (finding,) = [each for each in findings(rank("a", 40, 20), rank("b", 40, 0), parts=8) if each.is_striking]
    assert finding.bad == 10


@pytest.mark.parametrize("began_anew", [rank("b", -400, -250), rank("b", 0, -1), rank("b", 400, 0, tokens=-9)])
def test_ranks_are_not_compared_where_one_began_anew(began_anew):
    a, c = rank("a", 400, 250, tokens=650), rank("c", 400, 0, tokens=650)
    assert findings(a, began_anew, c) == findings(began_anew, a) == []
    workload = Workload(name="plain", version=1, requests=requests(2))
    answers = [answer(request.id, range(24)) for request in workload.requests]
    part = a_part(workload, answers, answers, family="speed")
    parts = [replace(part, speculative=replace(part.speculative, ranks=ranks)) for ranks in ((a, rank("b", 900, 0)), (a, began_anew))]
    assert list(compare_ranks(parts)) == []
    assert describe_uncompared(parts) == ("ranks were not compared: counters of b began anew",)
    assert describe_uncompared(parts[:1]) == ()


def test_few_drafts_raise_no_alarm():
    assert all(each.p_value >= 0.25 for each in findings(rank("a", 400, 250), rank("b", 70, 0)) if each.is_striking)


def test_sums_and_differences_of_ranks():
    (total,) = sum_ranks([[rank("a", 4, 2, tokens=9)], [], [rank("a", 6, 1, tokens=None)]])
    assert (total.counters.drafts, total.counters.accepted_tokens, total.generated_tokens) == (10, 3, None)
    assert (rank("a", 6, 3, tokens=9) - rank("a", 4, 3, tokens=2)).generated_tokens == 7

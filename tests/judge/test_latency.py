"""Percentiles, goodput and cached tokens of one arm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge.speed import latency
from pytest_specdec.model.baseline import Slo
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Usage
from tests.judge.captured_values import answer, transcript


@pytest.mark.parametrize(
    "count, expected", [(1, (1, 1, 1)), (2, (1, 2, 2)), (4, (2, 4, 4)), (10, (5, 9, 10)), (100, (50, 90, 99)), (1_000, (500, 900, 990))]
)
def test_percentiles_are_values_of_the_sample_by_nearest_rank(count, expected):
    found = latency.percentiles(float(value) for value in reversed(range(1, count + 1)))
    assert (found.p50_s, found.p90_s, found.p99_s, found.count) == (*expected, count)


def test_a_sample_of_nothing_has_no_percentiles():
    assert latency.percentiles([None, None]) is None


def streamed(number, *, ttft_s=0.1, tpot_s=0.01, tokens=101, sent_s=0.0, content_s=None, cached=None):
    last_s = sent_s + ttft_s + (tokens - 1) * tpot_s
    timing = Timing(
        sent_s=sent_s,
        first_s=sent_s + ttft_s,
        content_s=None if content_s is None else sent_s + content_s,
        last_s=last_s,
        done_s=last_s + 0.05,
        first_tokens=1,
        gaps_us=(round(2e6 * tpot_s),) * (tokens // 2),
    )
    usage = Usage(prompt_tokens=20, completion_tokens=tokens, cached_tokens=cached)
    return answer(f"chat-{number:02}", timing=timing, usage=usage)


def test_an_arm_is_told_by_its_tokens_its_steps_and_its_requests():
    answers = [streamed(i, ttft_s=0.1 * (i + 1), tpot_s=0.01 * (i + 1)) for i in range(10)]
    found = latency.latency(transcript("v", answers))
    assert [round(one.p90_s, 6) for one in (found.ttft, found.token, found.gap, found.request)] == [0.9, 0.09, 0.18, 9.9]
    assert (found.ttft.count, found.gap.count) == (10, 500)
    assert found.tokens_per_s == pytest.approx(10 * 101 / 11.05), "to the last byte of the slowest request"
    assert (found.content, found.cached_tokens, found.goodput) == (None, None, None)


@pytest.mark.parametrize("pass_index", [0, 1])
def test_time_without_a_request_in_flight_is_no_time_of_the_server(pass_index):
    """Where arms take turns, others are asked between one request and the next."""
    answers = [streamed(0), replace(streamed(1, sent_s=100.0), pass_index=pass_index)]
    assert latency.latency(transcript("v", answers)).tokens_per_s == pytest.approx(101 / 1.15)


@pytest.mark.parametrize(
    "slo, kept",
    [
        (Slo(ttft_s=0.35), 3),
        (Slo(tpot_s=0.02), 2),
        (Slo(request_s=1.1), 1),
        (Slo(ttft_s=0.35, tpot_s=0.02, request_s=100.0), 2),
        (Slo(ttft_s=10.0, tpot_s=10.0), 4),
    ],
)
def test_goodput_counts_answers_that_keep_every_limit_and_failures_as_none(slo, kept):
    answers = [*(streamed(i, ttft_s=0.1 * (i + 1), tpot_s=0.01 * (i + 1) - 1e-9) for i in range(4)), answer("chat-04", status=500)]
    found = latency.latency(transcript("v", answers), slo).goodput
    assert (found.kept, found.answers) == (kept, 5)
    assert found.per_s == pytest.approx(kept / 4.45, rel=1e-3)


def test_arms_stand_side_by_side():
    base = transcript("baseline", [streamed(0, cached=0)])
    mine = transcript("v", [streamed(0, ttft_s=0.05, tpot_s=0.005, content_s=0.3, cached=16)])
    arms = [latency.latency(arm, Slo(tpot_s=0.007)) for arm in (base, mine)]
    assert latency.lines(arms) == (
        "time to first token p50 / p90 / p99: baseline 100.0 / 100.0 / 100.0 ms; v 50.0 / 50.0 / 50.0 ms",
        "time to first text p50 / p90 / p99: v 300.0 / 300.0 / 300.0 ms",
        "inter-token latency p50 / p90 / p99: baseline 10.0 / 10.0 / 10.0 ms; v 5.0 / 5.0 / 5.0 ms",
        "step gap p50 / p90 / p99: baseline 20.0 / 20.0 / 20.0 ms; v 10.0 / 10.0 / 10.0 ms",
        "request latency p50 / p90 / p99: baseline 1,100.0 / 1,100.0 / 1,100.0 ms; v 550.0 / 550.0 / 550.0 ms",
        "tokens of all requests per second: baseline 87.83; v 168.33",
        "cached prompt tokens: baseline 0 of 20; v 16 of 20",
        "goodput of baseline: 0 of 1 answers keep time per token 7 ms: 0.00 requests/s",
        "goodput of v: 1 of 1 answers keep time per token 7 ms: 1.67 requests/s",
    )
    known = latency.figures("speculative", arms[1])
    assert known["speculative_inter_token_p99_s"] == pytest.approx(0.005)
    assert (known["speculative_cached_prompt_tokens"], known["speculative_goodput"]) == (16.0, 1.0)


def test_text_that_comes_with_the_first_token_has_no_line_of_its_own():
    arms = [latency.latency(transcript("v", [streamed(0, content_s=0.1)]))]
    assert not any("first text" in line for line in latency.lines(arms))


def test_an_arm_that_streamed_nothing_has_no_latencies():
    assert latency.latency(transcript("v", [answer("chat-00", range(5))])) is None

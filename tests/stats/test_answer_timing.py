"""The definitions of one answer's times, on streams whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Usage
from pytest_specdec.stats.answer_timing import (
    content_ttft_s,
    latency_s,
    prompt_tokens_per_s,
    response_tokens_per_s,
    seconds_per_token,
    step_gap_s,
    tokens_per_chunk,
    tokens_per_s,
    ttft_s,
)
from tests.judge.captured_values import answer, timed

STREAM = Timing(sent_s=10.0, first_s=10.3, done_s=12.9, first_tokens=2, content_s=11.05, last_s=10.3 + 99 * 0.025, gaps_us=(25_000,) * 99)
"""200 tokens in 100 chunks, one every 25 ms from 300 ms on; 30 of them are reasoning, and the end of the stream is late."""
TRUTH = answer(timing=STREAM, usage=Usage(prompt_tokens=30, completion_tokens=200))


def test_every_figure_of_a_stream_of_two_tokens_a_chunk_is_the_true_one():
    """80 tokens/s: by chunks it would be 40, by the last byte 76, with the time to the first token 72."""
    assert seconds_per_token(TRUTH) == pytest.approx(0.0125)
    assert response_tokens_per_s(TRUTH) == pytest.approx(80.0)
    assert (ttft_s(TRUTH), content_ttft_s(TRUTH)) == (pytest.approx(0.3), pytest.approx(1.05))
    assert latency_s(TRUTH) == pytest.approx(2.775)
    assert tokens_per_s(TRUTH) == pytest.approx(200 / 2.775)
    assert (step_gap_s(TRUTH), tokens_per_chunk(TRUTH)) == (pytest.approx(0.025), pytest.approx(2.0))
    assert prompt_tokens_per_s(TRUTH) == pytest.approx(100.0)


def test_runs_without_the_stamp_of_the_last_token_are_timed_to_the_last_byte():
    earlier = replace(TRUTH, timing=Timing(sent_s=10.0, first_s=10.3, done_s=12.775, first_tokens=2))
    assert response_tokens_per_s(earlier) == pytest.approx(80.0)
    assert [of(earlier) for of in (content_ttft_s, step_gap_s, tokens_per_chunk)] == [None, None, None]


def test_chunks_that_waited_with_the_first_are_no_steps_behind_it():
    """Three chunks of two tokens were read at once: the steps after them are still of two tokens."""
    timing = replace(STREAM, first_tokens=6, gaps_us=(9, 9, *(25_000,) * 97), last_s=10.3 + 97 * 0.025)
    assert tokens_per_chunk(replace(TRUTH, timing=timing)) == pytest.approx(2.0)


def test_a_client_that_reads_in_bursts_has_a_step_gap_far_below_the_mean():
    bursty = replace(STREAM, gaps_us=(100, 100, 99_800) * 33)
    assert step_gap_s(replace(TRUTH, timing=bursty)) == pytest.approx(0.0001)
    assert seconds_per_token(replace(TRUTH, timing=bursty)) == pytest.approx(0.0125)


def test_what_did_not_stream_or_failed_has_no_times():
    unstreamed = replace(TRUTH, timing=Timing(sent_s=1.0, first_s=None, done_s=2.0))
    for given in (unstreamed, replace(TRUTH, status=500), replace(TRUTH, timing=None)):
        assert [of(given) for of in (ttft_s, content_ttft_s, latency_s, seconds_per_token, tokens_per_s, step_gap_s)] == [None] * 6


@pytest.mark.parametrize(
    "given, per_s",
    [
        (timed(per_s=50.0), 50.0),
        (timed(per_s=50.0, windows=(4, 4)), 50.0 * 97 / 100),
        (timed(per_s=50.0, tokens=2), 50.0),
        (replace(timed(per_s=50.0), usage=None), 50.0),
        (replace(timed(per_s=50.0), status=500), None),
        (replace(timed(per_s=50.0), timing=None), None),
        (replace(timed(per_s=50.0), timing=Timing(sent_s=0.0, first_s=None, done_s=1.0)), None),
        (replace(timed(per_s=50.0), timing=Timing(sent_s=0.0, first_s=1.0, done_s=1.0)), None),
        (timed(per_s=50.0, tokens=4, windows=(4,)), None),
    ],
)
def test_response_speed_counts_tokens_behind_the_first_chunk(given, per_s):
    assert response_tokens_per_s(given) == (None if per_s is None else pytest.approx(per_s))


@pytest.mark.parametrize("burst", [1, 2, 30, 50])
def test_tokens_that_were_read_together_with_the_first_are_not_counted_behind_it(burst):
    assert response_tokens_per_s(timed(per_s=50.0, burst=burst)) == pytest.approx(50.0, rel=1e-4)


def test_prompt_speed_is_prompt_tokens_over_time_to_first_token():
    assert prompt_tokens_per_s(timed(per_s=9.0, ttft_s=0.5, prompt_tokens=20)) == pytest.approx(40.0)
    assert prompt_tokens_per_s(replace(timed(per_s=9.0, ttft_s=0.5), usage=None)) == pytest.approx(6.0)
    assert prompt_tokens_per_s(answer()) is None
    assert ttft_s(replace(timed(per_s=9.0), timing=Timing(sent_s=1.0, first_s=1.0, done_s=2.0))) is None

"""The counters in vLLM's log, in lines that its releases wrote."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.engines.vllm import VllmDialect, parse
from pytest_specdec.engines.vllm.log_metrics import logged_counters
from pytest_specdec.model.transcript import SpecCounters

V0_6_3 = (
    "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, "
    "Number of speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616.\n"
)
V0_6_1 = (
    "Speculative metrics: Draft acceptance rate: 0.000, System efficiency: 0.250, Number of speculative tokens: 3, "
    "Number of accepted tokens: 0, Number of draft tokens: 483, Number of emitted tokens: 161.\n"
)
V0_8 = "INFO 04-02 18:03:41 [metrics.py:53] SpecDecoding metrics: Draft acceptance rate: 62.5%, Accepted: 5 tokens, Drafted: 8 tokens\n"
V0_8_IDLE = "INFO 04-02 18:03:41 [metrics.py:53] SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens\n"
V0_9 = (
    "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance length: 2.16, "
    "Accepted: 150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264\n"
)
V0_32 = (
    "(APIServer pid=7) INFO 11-22 10:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.50, "
    "Accepted throughput: 1.50 tokens/s, Drafted throughput: 3.00 tokens/s, Accepted: 15 tokens, Drafted: 30 tokens, "
    "Per-position acceptance rate: 0.800, 0.500, 0.200, Avg Draft acceptance rate: 50.0%\n"
)


def counters(drafts, drafted, accepted, *per_position):
    return SpecCounters(drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted, accepted_per_position=per_position)


@pytest.mark.parametrize(
    "text, found",
    [
        (V0_9, counters(129, 387, 150, 70, 46, 34)),
        (V0_32, counters(10, 30, 15, 8, 5, 2)),
        (V0_6_1, counters(161, 483, 0)),
        (V0_6_3, counters(4437, 13311, 6179)),
        (V0_8_IDLE, counters(0, 0, 0)),
        (V0_9 + "something else\n" + V0_32 + V0_8_IDLE, counters(139, 417, 165, 78, 51, 36)),
    ],
)
def test_a_log_adds_up_to_counters(text, found):
    assert logged_counters(text) == found


def test_emitted_tokens_tell_what_was_accepted_before_0_8():
    """Its own count of accepted tokens takes every position for itself, also after a rejected one."""
    (found,) = [logged_counters(V0_6_3)]
    assert found.accepted_tokens == 10616 - 13311 // 3 < 8547


def test_readings_from_before_0_8_replace_each_other_until_the_server_is_started_again():
    first, second = V0_6_1, V0_6_1.replace("483", "966").replace("161", "322")
    assert logged_counters(first + second) == counters(322, 966, 0)
    assert logged_counters(first + second + first) == counters(483, 1449, 0)


def test_a_line_without_steps_needs_the_tokens_of_a_step():
    assert logged_counters(V0_8) is None
    assert logged_counters(V0_8, draft_tokens=4) == counters(2, 8, 5)
    assert VllmDialect(4).logged(V0_8) == counters(2, 8, 5)


@pytest.mark.parametrize("text", ["", "INFO ready\n", "SpecDecoding metrics: nothing to read here\n", "Speculative metrics: ,\n"])
def test_a_log_without_such_lines_has_no_counters(text):
    assert logged_counters(text) is None


def line(accepted, drafted):
    """What 0.32 writes of steps with these counts."""
    steps, longest = len(drafted), max(drafted)
    rates = ", ".join(f"{sum(count > position for count in accepted) / steps:.3f}" for position in range(longest))
    total, of = sum(accepted), sum(drafted)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + total / steps:.2f}, Accepted throughput: 1.00 tokens/s, "
        f"Drafted throughput: 1.00 tokens/s, Accepted: {total} tokens, Drafted: {of} tokens, "
        f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {100 * total / of:.1f}%\n"
    )


@settings(deadline=None, derandomize=True)
@given(k=st.integers(1, 7), accepted=st.lists(st.integers(0, 7), min_size=1, max_size=60))
def test_drafts_of_one_length_are_read_back_exactly(k, accepted):
    accepted = [min(count, k) for count in accepted]
    per_position = tuple(sum(count > position for count in accepted) for position in range(k))
    assert logged_counters(line(accepted, [k] * len(accepted))) == counters(len(accepted), k * len(accepted), sum(accepted), *per_position)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=5, max_size=80))
def test_drafts_of_different_lengths_are_read_back_to_within_the_rounding(steps):
    drafted = [length for length, _ in steps]
    accepted = [min(length, count) for length, count in steps]
    found = logged_counters(line(accepted, drafted))
    assert (found.draft_tokens, found.accepted_tokens) == (sum(drafted), sum(accepted))
    if sum(accepted):
        assert abs(found.mean_acceptance_length - (1 + sum(accepted) / len(steps))) <= 0.02


def test_a_page_without_steps_is_left_to_the_log():
    """Before 0.9 there is no such series, and before 0.8 every interval adds the totals anew."""
    assert parse('vllm:spec_decode_num_draft_tokens_total{model_name="m"} 30\n') is None

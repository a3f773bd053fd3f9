"""Faults of verification, recovery, drafts and positions: each does in a server what its row says."""

from __future__ import annotations

import pytest

from specdec_reference.faults.catalogue import FAULTS
from tests.reference.asgi_client import PROBABILISTIC, served

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 64, "return_token_ids": True, "ignore_eos": True}
DRAWN = ASKED | {"temperature": 1.4, "seed": 4, "top_k": 20}
ROWS = {row.id: row for row in FAULTS.values() if row.topic in {"drafts", "positions", "recovery", "verification"}}


def tokens(client, asked):
    answer = client.complete(asked)
    return answer["choices"][0]["token_ids"], answer["metrics"]["speculative_decoding"]


@pytest.fixture(scope="module")
def right():
    with served(PROBABILISTIC, spec_decode_metrics="summary") as client:
        yield tokens(client, ASKED)[0], tokens(client, DRAWN)[0]


LATER = {"positions-behind-late", "prompt-taken-for-window", "stale-where-drafts-stop"}
"""Of long answers, of prompts as short as a window, and of drafters that stop: test_window_faults and others ask for these."""


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault", [fault for fault in ROWS if fault not in LATER])
def test_temperature_0_is_right_unless_the_row_says_that_greedy_is_red(fault, right):
    """In short answers something is wrong; the row's claim over the suites is held by tests/faults."""
    with served(PROBABILISTIC, fault=fault, spec_decode_metrics="summary") as client:
        (greedy, _), (drawn, _) = tokens(client, ASKED), tokens(client, DRAWN)
    assert len(greedy) == len(drawn) == 64
    names_greedy = any("greedy" in expected.red for expected in ROWS[fault].expected.values())
    assert names_greedy or greedy == right[0]
    assert (greedy, drawn) != right


@pytest.mark.examples(2)
@pytest.mark.parametrize("fault, greedy_drafts, sampled_drafts", [
    ("dead-drafts", True, True),
    ("drafts-dead-when-sampling", True, True),
    ("no-drafts-when-sampling", True, False),
])  # fmt: skip
def test_dead_drafts_leave_the_answers_right_and_the_counters_low(fault, greedy_drafts, sampled_drafts, right):
    with served(PROBABILISTIC, fault=fault, spec_decode_metrics="summary") as client:
        (greedy, cold), (_, hot) = tokens(client, ASKED), tokens(client, DRAWN)
    assert greedy == right[0]
    assert (cold["num_draft_tokens"] > 0, hot["num_draft_tokens"] > 0) == (greedy_drafts, sampled_drafts)
    assert hot["num_accepted_draft_tokens"] <= 1


def test_the_token_with_id_0_stands_behind_rejections():
    with served(PROBABILISTIC, fault="id-zero-on-rejection", spec_decode_metrics="summary") as client:
        assert 0 in tokens(client, ASKED)[0]

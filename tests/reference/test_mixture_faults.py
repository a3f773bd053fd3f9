"""Faults of batches whose requests differ in kind touch those batches only, and faults of the temperature those requests."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specdec_reference.faults import catalogue
from specdec_reference.openai_request import EngineRequest
from specdec_reference.rejection_sampler import DraftProposal, VerifyWindows
from specdec_reference.sampler import Sampling
from tests.reference.asgi_client import NGRAM, PROBABILISTIC, served
from tests.reference.faulty_methods import verified, with_fault

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 48, "return_token_ids": True, "ignore_eos": True}


def planted(fault):
    return catalogue.rules(fault, speculating=True)


def row(*, grammar=None, **fields):
    return SimpleNamespace(request=EngineRequest(**{"prompt": (1,), "max_tokens": 9, "temperature": 0.0, **fields}), grammar=grammar)


def last(fault, given, counts=None):
    draft = DraftProposal(tokens=np.zeros((len(given), 3), np.intp), counts=np.array(counts or [3] * len(given)))
    windows = VerifyWindows(accepted=np.zeros(len(given), np.intp), last=np.arange(10, 10 + len(given)))
    return verified(fault, given, draft, windows).last.tolist()


def test_seeded_rows_come_first_and_rows_with_a_grammar_stay():
    assert last("seeded-rows-first", [row(), row(), row(seed=1)]) == [12, 10, 11]
    assert last("seeded-rows-first", [row(), row(grammar=object()), row(seed=1)]) == [12, 11, 10]
    assert last("seeded-rows-first", [row(seed=2), row(seed=1)]) == [10, 11]


def test_rows_without_a_draft_come_first():
    assert last("undrafted-rows-first", [row(), row(), row()], [3, 0, 2]) == [11, 10, 12]
    assert last("undrafted-rows-first", [row(), row()], [3, 3]) == [10, 11]


def test_drawn_rows_change_places_from_three_on():
    drawn = {"temperature": 1.0}
    assert last("drawn-rows-swapped", [row(**drawn), row(), row(**drawn)]) == [12, 11, 10]
    assert last("drawn-rows-swapped", [row(**drawn), row(**drawn)]) == [10, 11]
    assert last("drawn-rows-swapped", [row(**drawn), row(grammar=object(), **drawn), row(**drawn)]) == [12, 11, 10]


def test_greedy_lines_are_not_a_number_unless_a_grammar_masks_them():
    sampling = Sampling.of([row().request, row(temperature=1.0).request, row().request])
    logits = np.array([[0.0, 1.0], [0.0, 1.0], [0.0, -np.inf]], np.float32)
    p = planted("divided-by-zero").distribute(logits, sampling, None)
    assert np.isnan(p).any(axis=1).tolist() == [True, False, False]
    count = with_fault("divided-by-zero", "counters.count_step", lambda drafted, accepted: counted.append((drafted, accepted)))
    counted = []
    count(3, 0)
    count(3, 2)
    assert counted == [(3, -1), (3, 2)]


def test_every_request_is_answered_as_at_temperature_0():
    with served(PROBABILISTIC) as client:
        greedy = client.complete(ASKED)["choices"][0]["token_ids"]
    with served(PROBABILISTIC, fault="always-greedy") as client:
        drawn = client.complete(ASKED | {"temperature": 1.0, "seed": 5})["choices"][0]["token_ids"]
    assert drawn[1:] == greedy[1:] or drawn[0] != greedy[0], "the prefill draws"


@pytest.mark.parametrize("speculation", [PROBABILISTIC, NGRAM])
def test_greedy_drafts_leave_temperature_0_alone(speculation):
    with served(speculation) as client:
        right = client.complete(ASKED)["choices"][0]["token_ids"]
    with served(speculation, fault="drafts-greedy-q-kept") as client:
        assert client.complete(ASKED)["choices"][0]["token_ids"] == right

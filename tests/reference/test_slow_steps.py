"""A slow step costs time and changes nothing else: neither tokens nor drafts."""

from __future__ import annotations

from specdec_reference.faults import slow_steps
from tests.reference.asgi_client import PROBABILISTIC, served

ASKED = {"prompt": "import os\nimport sys\n", "temperature": 0, "max_tokens": 24, "return_token_ids": True, "ignore_eos": True}


def answered(**settings):
    """The tokens, and the accepted ones of each step."""
    with served(PROBABILISTIC, spec_decode_metrics="detailed", **settings) as client:
        answer = client.complete(ASKED)
    return answer["choices"][0]["token_ids"], answer["metrics"]["speculative_decoding"]["per_step_accepted"]


def test_every_verify_step_waits_and_verifies_as_it_should(monkeypatch):
    waits = []
    monkeypatch.setattr(slow_steps.time, "sleep", waits.append)
    tokens, accepted = answered(fault="slow-verify")
    assert (tokens, accepted) == answered()
    assert waits == [0.05] * len(accepted)

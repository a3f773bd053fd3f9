"""The context limit: the field that each engine tells it by, and none where there is none."""

from __future__ import annotations

import json

import pytest

from pytest_specdec.capture.server import context_limit, readiness
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.files.secrets import Secrets

CARD, TRAINED = {"id": "m", "max_model_len": 2048}, {"id": "m", "meta": {"n_ctx_train": 8192}}
PROPS = {"default_generation_settings": {"n_ctx": 4096}}


def told(monkeypatch, cards, props=None):
    replies = {"/v1/models": None if cards is None else json.dumps({"data": cards}), "/props": None if props is None else json.dumps(props)}
    monkeypatch.setattr(readiness, "get", lambda _setup, path: replies[path])
    return context_limit.read(ServerSetup(model="m", port=1, secrets=Secrets()), "m")


@pytest.mark.parametrize("cards, props, limit", [
    ([CARD], None, 2048),
    ([{"id": "other", "max_model_len": 1}, CARD], None, 2048),
    ([{"id": "renamed", "max_model_len": 512}], None, 512),
    ([TRAINED], PROPS, 4096),
    ([TRAINED], None, 8192),
    ([{"id": "m"}], {"default_generation_settings": {}}, 0),
    ([{"id": "m", "max_model_len": None}], {"default_generation_settings": []}, 0),
    ([{"id": "m", "max_model_len": True}], {}, 0),
    ([{"id": "m", "max_model_len": "2048"}], None, 0),
    ([], None, 0),
    (None, None, 0),
])  # fmt: skip
def test_the_limit_is_read_where_an_engine_tells_it(monkeypatch, cards, props, limit):
    assert told(monkeypatch, cards, props) == limit

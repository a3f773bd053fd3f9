"""The context limit of a running server: the tokens of its longest sequence, as its own endpoints report it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.engines.protocol import ServerSetup
    from pytest_specdec.model.workload import JSON


def of(server: ArmServer) -> int:
    """Return a running server's context limit in tokens, 0 if unknown."""
    return read(server.recipe.setup, server.model) if server.running else 0


def read(setup: ServerSetup, model: str) -> int:
    """Return a server's context limit in tokens, prompt and answer together.

    Returns 0 if the server reports none. ``model`` is its name on the server; the first model listed stands in for one that is not.

    vLLM and SGLang have ``max_model_len`` in the card of the model, its entry in ``/v1/models``. llama.cpp has the
    context of one slot in ``/props``. If that endpoint is switched off, its card of the model has the context that
    the model was trained for: a server may serve less, and then refuses what is longer.
    """
    from pytest_specdec.capture.server.readiness import get, listed_models, parse_object  # noqa: PLC0415 - plans ask no server: no openai

    cards = listed_models(get(setup, "/v1/models"))
    card = cards.get(model) or next(iter(cards.values()), {})
    if limit := _number_at(card, "max_model_len"):
        return limit
    return _number_at(parse_object(get(setup, "/props")), "default_generation_settings", "n_ctx") or _number_at(card, "meta", "n_ctx_train")


def _number_at(value: JSON, *path: str) -> int:
    """Return the positive integer under nested keys, or 0."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

"""Request parameters: the sampling parameters of a request's body, read in one place for capture and judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pytest_specdec.stats.penalties import Penalties
from pytest_specdec.stats.token_distribution import Processing

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["NONE", "SamplingParams", "penalties", "sampling_params"]

NEUTRAL: Mapping[str, tuple[JSON, ...]] = {
    "min_tokens": (0,),
    "bad_words": ([], ()),
    "allowed_token_ids": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "tools": ([], ()),
}
"""Fields that change the distribution in ways not modelled here, with their neutral values; None is neutral for all."""

NONE = Penalties()
MOST_BIAS = 100.0
"""Largest bias; larger ones are reduced to it, by OpenAI's rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling parameters of one request."""

    temperature: float = 1.0
    top_k: int = 0
    """0 for all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    penalties: Penalties = NONE
    unmodelled: str = ""
    """Why its distribution cannot be computed; empty if it can."""

    def processing(self, tokens: int) -> Processing:
        """Return the parameters as arrays of ``tokens`` equal elements.

        Biases and penalties are left out: they depend on the tokens before each.
        """
        return Processing(
            temperature=np.full(tokens, self.temperature),
            top_k=np.full(tokens, self.top_k, dtype=np.int64),
            top_p=np.full(tokens, self.top_p),
            min_p=np.full(tokens, self.min_p),
        )


def sampling_params(body: Mapping[str, JSON]) -> SamplingParams:
    """Return the sampling parameters of a request, with OpenAI's defaults.

    ``body`` is the request's JSON. If its distribution is not modelled, or its temperature is 0, ``unmodelled`` says why, and the other
    parameters keep their defaults.
    """
    for field, neutral in NEUTRAL.items():
        value = body.get(field)
        if value is not None and value not in neutral:
            return SamplingParams(unmodelled=f"{field} is not modelled")
    temperature = _number(body.get("temperature"), 1.0)
    if temperature <= 0.0:
        return SamplingParams(unmodelled="temperature 0 leaves nothing to draw")
    return SamplingParams(
        temperature=temperature,
        top_k=max(int(_number(body.get("top_k"), 0)), 0),
        top_p=_number(body.get("top_p"), 1.0),
        min_p=_number(body.get("min_p"), 0.0),
        penalties=penalties(body),
    )


def penalties(body: Mapping[str, JSON]) -> Penalties:
    """Return the penalties and biases of a request, also at temperature 0.

    ``body`` is the request's JSON; a missing field changes nothing. Biases are limited to -100..100 nats.
    """
    bias = body.get("logit_bias")
    biases = bias if isinstance(bias, Mapping) else {}
    return Penalties(
        presence=_number(body.get("presence_penalty"), 0.0),
        frequency=_number(body.get("frequency_penalty"), 0.0),
        repetition=_number(body.get("repetition_penalty"), 1.0),
        bias={int(token): min(max(_number(value, 0.0), -MOST_BIAS), MOST_BIAS) for token, value in biases.items()},
    )


def _number(value: JSON, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default

"""Calibration: requests that measure the servers themselves, the same whichever tests are selected.

Plain draws report log-probabilities; their differences from the scores of the same tokens give the noise of the run. Draws without sampling
parameters show the server's defaults, which an upgrade may change. No verdict is given on either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.workload import CALIBRATION, Depth, Request, Workload
from pytest_specdec.prompts import ALL
from pytest_specdec.prompts.prompts import reporting_fields

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import Prompt

__all__ = ["DEFAULTS", "default_draws", "plain_draws"]

_REQUESTS = {Depth.SMOKE: 12}
"""At other depths 32; at smoke depth one boot answers them twice, as the baseline and as the control."""
_TOKENS = 64
"""Of each answer. Half of a small model's tokens show nothing of a scoring bias, so that fewer would leave it unseen."""
DEFAULTS = f"defaults{CALIBRATION}"
"""The workload that shows the baseline's default sampling parameters."""
_DEFAULT_REQUESTS = {Depth.SMOKE: 12}
_DEFAULT_TOKENS = 32
"""Of each answer. A temperature of 0.6 in place of 1.0 shows within 300 tokens of each baseline."""


def plain_draws(depth: Depth) -> Workload:
    """Return the workload to measure a run's noise at ``depth``.

    It sends the first bundled prompts at temperature 1, without seeds, and asks for log-probabilities. It is a workload
    of its own, since reporting log-probabilities takes some engines off their fast path.
    """
    requests = tuple(map(_reporting_request, ALL.items[: _REQUESTS.get(depth, 32)]))
    return Workload(name=f"noise{CALIBRATION}", version=1, requests=requests, concurrency=32)


def _reporting_request(prompt: Prompt) -> Request:
    """Return a request at temperature 1 that reports log-probabilities."""
    body: dict[str, JSON] = {"max_tokens": _TOKENS, "temperature": 1.0, "top_p": 1.0, **reporting_fields(prompt.route, 1)}
    return Request(id=prompt.id, route=prompt.route, body={**prompt.content, **body})


def default_draws(depth: Depth) -> Workload:
    """Return the workload to learn the baseline's default sampling parameters at ``depth``.

    It sends the first bundled prompts without any sampling parameter and without seeds, as a plain client does. ``server_defaults`` keeps
    parameters from being added when they are sent.
    """
    prompts = ALL.items[: _DEFAULT_REQUESTS.get(depth, 24)]
    requests = tuple(
        Request(id=prompt.id, route=prompt.route, body={**prompt.content, "max_tokens": _DEFAULT_TOKENS}, server_defaults=True)
        for prompt in prompts
    )
    return Workload(name=DEFAULTS, version=1, requests=requests, concurrency=32)

"""The acceptance length: tokens per verify step, with an interval where windows show it prompt by prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_specdec.stats.speedup import within_run

if TYPE_CHECKING:
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Transcript
    from pytest_specdec.stats.interval import Interval

__all__ = ["AcceptanceLength", "acceptance_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per verify step, the bonus or recovered token included."""

    tokens: float
    interval: Interval | None
    """Over prompts, which are its independent units; None where windows of at least two prompts are not known."""


def acceptance_length(captured: Captured, confidence: float) -> AcceptanceLength | None:
    """Return what the counters say, else the windows; None where neither is known.

    The interval is Student's t (Hodges-Lehmann from ten) over the logs of the prompts' own mean windows. Steps of one prompt depend on each
    other: as independent units they give 12 to 18 % false alarms at nominal 1 % (facts/statistics.md section 6).
    """
    logs = [math.log(mean) for mean in _by_prompt(captured.speculative)]
    estimate = within_run(logs, confidence) if len(logs) > 1 else None
    counters = captured.speculative.counters
    if counters is not None and counters.drafts:
        return AcceptanceLength(tokens=counters.mean_acceptance_length, interval=estimate.interval if estimate else None)
    if not logs:
        return None
    return AcceptanceLength(tokens=math.exp(math.fsum(logs) / len(logs)), interval=estimate.interval if estimate else None)


def _by_prompt(transcript: Transcript) -> list[float]:
    """Return each request's mean window over all its passes, the prefill's and the last, which a limit may have cut, left out."""
    windows: dict[str, list[int]] = {}
    for answer in transcript.answers:
        for choice in answer.choices:
            windows.setdefault(answer.request_id, []).extend((choice.windows or ())[1:-1])
    return [math.fsum(each) / len(each) for each in windows.values() if each]

"""Casualties: requests that a server died, hung or broke on, each sent again alone to a fresh server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.model.transcript import Casualty, Ending

if TYPE_CHECKING:
    from pytest_specdec.capture.arm import Arm
    from pytest_specdec.capture.requests import Sent

__all__ = ["describe"]


def describe(arm: Arm, sent: Sent, *, recurred: bool) -> Casualty:
    """Say how the server of ``arm`` failed a request; called while that server, or what is left of it, still stands."""
    ended = "" if sent.ending is Ending.HUNG else arm.settle()
    own = f"server, {ended}" if ended else f"server still running, {sent.answer.error}"
    return Casualty(
        request_id=sent.answer.request_id,
        ending=Ending.DIED if ended else sent.ending or Ending.ERROR,
        recurred=recurred,
        process="; ".join([*arm.lost, own]),
        cause=arm.cause() if ended else "",
        log_tail=arm.log_tail(),
    )

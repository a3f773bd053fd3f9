"""Requests as a config asks them: its own prompts beside those of a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.prompts import own

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.workload import Workload
    from pytest_specdec.prompts.own import OwnPrompt

__all__ = ["configured"]


def configured(workload: Workload, prompts: Sequence[OwnPrompt]) -> Workload:
    """Return ``workload`` as a config asks it; what is sent is in the plan, so that nothing else of the config is needed to judge."""
    return own.extended(workload, prompts)

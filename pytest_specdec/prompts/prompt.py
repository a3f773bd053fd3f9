"""A prompt: a text of our own that workloads are made of, and where it came from."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from pytest_specdec.model.workload import JSON

__all__ = ["Prompt", "bundled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A conversation's first message, or the beginning of a text."""

    id: str
    """Stable over versions: ``code-03``."""
    category: str
    route: Route
    text: str
    schema: str = ""
    """Which of our schemas an answer fits, where it is about JSON."""
    provenance: str
    """Who wrote it, under which licence."""

    @property
    def asked(self) -> dict[str, JSON]:
        """The part of the request's body that asks: ``messages`` or ``prompt``."""
        if self.route is Route.CHAT:
            return {"messages": [{"role": "user", "content": self.text}]}
        return {"prompt": self.text}


def bundled() -> tuple[Prompt, ...]:
    """Return the prompts that come with this package, in the order of the file."""
    text = resources.files("pytest_specdec.prompts").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return tuple(_prompt(json.loads(line)) for line in text.splitlines() if line)


def _prompt(fields: dict[str, str]) -> Prompt:
    return Prompt(**{**fields, "route": Route(fields["route"])})  # type: ignore[arg-type]

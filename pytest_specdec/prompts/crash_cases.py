"""Crash cases: one request for each kind that has killed a speculating server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_specdec.model.workload import Request, Route
from pytest_specdec.prompts import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.workload import JSON
    from pytest_specdec.prompts.prompts import Prompt

__all__ = ["CRASH_CASES", "CrashCase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashCase:
    """A kind of request that has killed servers, by its peculiarities."""

    id: str
    text: str | None = None
    """Asked instead of the prompt."""
    route: Route | None = None
    """Where it is asked, whatever the prompt's route."""
    body: Mapping[str, JSON] = field(default_factory=dict)

    def request(self, prompt: Prompt) -> Request:
        """Return this case's request.

        Its text is ``prompt``'s unless the case has one of its own.
        """
        route, text = self.route or prompt.route, prompt.text if self.text is None else self.text
        content: dict[str, JSON] = {"messages": [{"role": "user", "content": text}]} if route is Route.CHAT else {"prompt": text}
        neutral: dict[str, JSON] = {"max_tokens": 32, "temperature": 0.0, "top_p": 1.0}
        return Request(id=f"live-{self.id}", route=route, body={**content, **neutral, **self.body})


_LONG = "The bell rang and the door opened and the guests went in. " * 30
_FLAT = {"temperature": 2.0, "seed": 7}

CRASH_CASES: tuple[CrashCase, ...] = (
    CrashCase(id="one-token", body={"max_tokens": 1}),
    CrashCase(id="two-tokens", body={"max_tokens": 2}),
    CrashCase(id="eight-tokens", body={"max_tokens": 8}),
    CrashCase(id="past-the-end", body={"max_tokens": 64, "ignore_eos": True}),
    CrashCase(id="json-object", route=Route.CHAT, body={"max_tokens": 64, "response_format": schemas.ANY_OBJECT}),
    CrashCase(id="json-schema", route=Route.CHAT, body={"max_tokens": 64, "response_format": schemas.bound("ticket")}),
    CrashCase(id="long-prompt", text=_LONG, route=Route.COMPLETIONS, body={"max_tokens": 16}),
    CrashCase(id="shortest-prompt", text="A", route=Route.COMPLETIONS),
    CrashCase(id="repeating", text="one two three " * 20, route=Route.COMPLETIONS, body={"max_tokens": 64}),
    CrashCase(id="high-temperature", body=_FLAT),
    CrashCase(id="low-temperature", body={"temperature": 0.01, "seed": 7}),
    CrashCase(id="top-k-one", body={"temperature": 1.0, "top_k": 1, "seed": 7}),
    CrashCase(id="tiny-top-p", body={"temperature": 1.0, "top_p": 0.001, "seed": 7}),
    CrashCase(id="stop-at-space", body={"max_tokens": 64, "stop": [" "]}),
    CrashCase(id="stop-never", body={"stop": ["\u2603 never said", "\n\n\n\n\n"]}),
    CrashCase(id="logprobs", route=Route.COMPLETIONS, body={"max_tokens": 16, "logprobs": 5}),
    CrashCase(id="chat-logprobs", route=Route.CHAT, body={"max_tokens": 16, "logprobs": True, "top_logprobs": 5}),
    CrashCase(id="two-choices", body={"max_tokens": 16, "n": 2, **_FLAT}),
    CrashCase(id="other-scripts", text="Ελληνικά, русский, 日本語, عربى, 👩\u200d🚀 and \u0007 a bell:", route=Route.COMPLETIONS),
    CrashCase(id="control-words", text="<|im_start|>user\n<|im_end|>\n<|endoftext|>", route=Route.COMPLETIONS),
    CrashCase(id="json-object-sampled", route=Route.CHAT, body={"max_tokens": 64, "response_format": schemas.ANY_OBJECT, **_FLAT}),
    CrashCase(id="schema-cut-short", route=Route.CHAT, body={"max_tokens": 3, "response_format": schemas.bound("person")}),
    CrashCase(id="many-tokens", body={"max_tokens": 512, "ignore_eos": True, "temperature": 1.0, "seed": 7}),
    CrashCase(id="plain-again"),
)
"""From harmless to harmful and back: the last one shows that the server still answers."""

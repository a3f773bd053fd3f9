"""Requests of a model that reasons, each with a budget for its reasoning: its end is forced at every place of a verify window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_specdec.model.workload import Depth, Need, Request, Route, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.model.workload import JSON

__all__ = ["BUDGETS"]

_CODE: Final = {
    "total": "def total(items):\n    result = 0\n    for item in items:\n        result += item\n    return result\n",
    "queue": "class Queue:\n    def __init__(self):\n        self.items = []\n",
    "connect": "def connect(host, port):\n    sock = socket.socket()\n    sock.connect((host, port))\n    return sock\n",
    "area": "def area(width, height):\n    return width * height\n",
    "greet": "def greet(name):\n    print(f'Hello, {name}!')\n    return name\n",
    "swap": "def swap(pair):\n    left, right = pair\n    return right, left\n",
}
"""Prompts on which the bundled model, too, reasons for longer than any of the budgets."""
_TOKENS: Final = 40
_LIMITS: Final = ((5, 10, 2), (6, 11, 1), (7, 12, 0), (8, 9, 3), (5, 7, 4), (6, 8, 13))
"""Budgets of each prompt in turn: reasoning ends at each place of a window, and before the first."""


def _request(name: str, code: str, budget: int | None, **fields: JSON) -> Request:
    """Return a request about ``code``.

    ``budget`` is the most tokens of its reasoning, None for no limit.
    """
    limit: dict[str, JSON] = {} if budget is None else {"thinking_token_budget": budget}
    messages: list[JSON] = [{"role": "user", "content": f"Change nothing in this code:\n\n{code}"}]
    body: dict[str, JSON] = {"messages": messages, "max_tokens": _TOKENS, "temperature": 0.0, "top_p": 1.0}
    return Request(id=name, route=Route.CHAT, body={**body, "chat_template_kwargs": {"enable_thinking": True}, **fields, **limit})


def _requests() -> Iterator[Request]:
    """Yield the requests of each prompt in turn.

    They are greedy without a budget and with each of three budgets, token limits of the reasoning, and sampled with the first.
    """
    for (name, code), budgets in zip(_CODE.items(), _LIMITS, strict=True):
        yield _request(f"{name}-any", code, None)
        for budget in budgets:
            yield _request(f"{name}-{budget}", code, budget)
        seed = budgets[1]  # any number would do: this one is another for each prompt
        yield _request(f"{name}-{budgets[0]}-drawn", code, budgets[0], temperature=1.0, seed=seed)


BUDGETS = Workload(
    name="thinking-budgets",
    version=1,
    requests=tuple(_requests()),
    take={Depth.SMOKE: 15},
    concurrency=16,
    needs=Need.THINKING_BUDGET,
)
"""Every prompt at temperature 0 without a budget and with three, and drawn with one."""

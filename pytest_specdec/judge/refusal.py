"""A refusal: an arm that answers a whole workload with a 4xx, as an engine may that does not offer what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_specdec.judge.quotation import quoted
from pytest_specdec.judge.saying import say
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_specdec.model.answer import Answer
    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.verdict import Verdict

__all__ = ["refusal", "refused"]


def refused(answer: Answer) -> bool:
    """Whether the server said no: a 4xx."""
    return answer.status is not None and 400 <= answer.status < 500  # noqa: PLR2004 - what a 4xx is


def refusal(captured: Captured) -> Verdict | None:
    """Return a verdict when the judged arm refused every request; None otherwise."""
    answers = captured.speculative.answers
    if not answers or not all(map(refused, answers)):
        return None
    first = answers[0]
    return say(
        captured,
        Outcome.REFUSED,
        f"all {len(answers)} requests were refused with {first.status}: {quoted(first.error or '', 100)}; {_baseline(captured)}",
        evidence=messages(answers),
        cell=f"{first.status}",
        figures={"refused_requests": len(answers)},
    )


def messages(answers: Sequence[Answer]) -> tuple[str, ...]:
    """Return a line per distinct refusal, with the requests it was given to."""
    said: dict[str, list[str]] = {}
    for answer in filter(refused, answers):
        said.setdefault(f"{answer.status} {quoted(answer.error or '', 200)}", []).append(answer.request_id)
    return tuple(f"refused with {text}: {len(ids)} requests, first {ids[0]}" for text, ids in said.items())


def _baseline(captured: Captured) -> str:
    honoured = sum(answer.ok for answer in captured.baseline.answers)
    if not honoured:
        return (
            "the baseline refuses them too" if any(map(refused, captured.baseline.answers)) else "the baseline does not answer them either"
        )
    return f"the baseline answers {honoured} of them"

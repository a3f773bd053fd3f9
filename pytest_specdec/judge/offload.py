"""Offload: a prompt whose cache has left the device is answered, drafted and cached as if it had stayed.

Which blocks have left is the server's own affair: what is judged are prompts asked again after more tokens than its cache holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import state
from pytest_specdec.judge.repeats import LEAST_BLOCK, cached_tokens, phase
from pytest_specdec.judge.verdicts import restate, say
from pytest_specdec.model.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

__all__ = ["judge"]

BACK_WRONG = "a prompt whose cache comes back from the offload is answered wrongly"
BACK_EMPTY = "a prompt whose cache comes back from the offload is answered with nothing, or cut off"
DRAFTS_LOST = "drafts are no longer accepted when a prompt's cache comes back from the offload"
NEVER_SERVED = "offloaded cache is never served while it speculates, or not counted"
PARTLY_SERVED = "speculation loses a part of the offloaded cache"
_NAMES: Mapping[str, str] = {
    state.SECOND_WRONG: BACK_WRONG,
    state.PREFIX_WRONG: BACK_WRONG,
    state.SECOND_EMPTY: BACK_EMPTY,
    state.DRAFTS_DIE: DRAFTS_LOST,
    state.DEFEATED: NEVER_SERVED,
    state.LOST: PARTLY_SERVED,
}
"""By the name of a fault of prompts asked again, its name where their cache had left the device."""
_ENOUGH = 1000
"""Tokens between the two askings, at least those of a small cache."""


def judge(captured: Captured) -> Verdict:
    """Return the verdict on prompts asked again after their cache was offloaded.

    Answers, drafts and cached tokens are judged as of any prompt asked again (judge/state.py). The names of faults are replaced by this
    family's. A pass becomes INCONCLUSIVE if fewer tokens came between than a cache holds, or if the baseline itself took nothing back.
    Without ``on_verdict`` the inner verdict is not reported: ``restate`` reports the final one.
    """
    verdict = state.judge(replace(captured, on_verdict=None))
    if verdict.outcome is Outcome.PASS:
        return _check_offloaded(captured) or restate(captured, verdict)
    if verdict.names not in _NAMES:
        return restate(captured, verdict)
    name = _NAMES[verdict.names]
    return restate(captured, verdict, names=name, headline=verdict.headline.replace(verdict.names, name, 1))


def _check_offloaded(captured: Captured) -> Verdict | None:
    """Return INCONCLUSIVE if nothing shows that the baseline's cache left and came back; else None.

    To leave, it needs 1,000 tokens of other prompts and answers between. It came back if the server reports a block of cached tokens.
    """
    answers = captured.baseline.answers
    # Requests that ask a prompt again have ids that begin with ``warm``.
    back = [answer for answer in answers if phase(answer.request_id) == "warm"]
    # The workload asks these prompts first, then others, then these again.
    between = sum(map(_count_tokens, answers[len(back) : -len(back) or None]))
    if between < _ENOUGH:
        headline = f"only {between:,} tokens came before the prompts were asked again; {_ENOUGH:,} push them out of a small cache"
    elif not any(cached_tokens(answer) >= LEAST_BLOCK for answer in back):
        headline = "the baseline took no cached token back: its offload is not in use, or cached tokens are not counted"
    else:
        return None
    return say(
        captured, Outcome.INCONCLUSIVE, headline, settle="see that the servers offload and report cached tokens", cell="not offloaded"
    )


def _count_tokens(answer: Answer) -> int:
    """Return the tokens of an answer and its prompt."""
    return (answer.usage.prompt_tokens if answer.usage else 0) + (answer.tokens or 0)

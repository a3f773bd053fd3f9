"""The burst probe: copy-heavy prompts streamed one at a time, for evidence of drafting if a server counts no drafts.

Every prompt is asked twice, and again while that takes no time: a busy machine disturbs short streams the most. Tokens of one verify step
arrive together at the same place in every answer; tokens that arrive together because the client, the machine or the network was busy do so
anywhere. ``stats/bursts.py`` tells the two apart.
"""

from __future__ import annotations

import time
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.model.transcript import Stream
from pytest_specdec.model.workload import Request, Route

if TYPE_CHECKING:
    from pytest_specdec.capture.client import TimedAnswer
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.workload import JSON

_WORDS = ("quartz", "violin", "tundra", "zebra", "jasmine", "ember", "yacht", "falcon", "indigo", "orbit", "kelp", "nutmeg")
"""A prompt begins with each of them. With more prompts than the ten that some servers keep, all are computed anew the second time."""
_FUNCTIONS = 4
"""Functions in a prompt."""
_TOKENS = 48
"""Tokens of an answer: with twelve prompts sent twice, more than a thousand in all."""
_ROUNDS, _MOST_ROUNDS = 2, 6
"""Times that every prompt is sent, at least and at most."""
_SHORT_S = 5.0
"""Seconds from the beginning within which a round after the second may begin."""
_DEADLINE_S = 60.0
"""Seconds that one probe may take."""


class BurstProbe:
    """Asks one arm for a thousand streamed tokens or more.

    It stops at once if the answers report their verify steps.
    """

    def __init__(self, server: ArmServer) -> None:
        self._server = server

    def run(self) -> tuple[Stream, ...]:
        """Return the arrival times of the streamed answers' chunks.

        Prompts without an answer are left out. A server that counts its drafts gets no requests, and the result is empty. Rounds after the
        second begin only within ``_SHORT_S`` seconds. The probe ends early if the server fails, or if an answer reports its verify steps,
        since arrival times are then not needed as evidence.
        """
        if self._server.counters() is not None:
            return ()
        streams: list[Stream] = []
        began_s = time.monotonic()
        for number in range(_MOST_ROUNDS):
            if number >= _ROUNDS and time.monotonic() - began_s > _SHORT_S:
                break
            for prompt in range(len(_WORDS)):
                outcome = self._send(prompt)
                if outcome is None or _shows_verify_steps(outcome):
                    return tuple(streams)
                if stream := _stream_of_answer(prompt, outcome):
                    streams.append(stream)
        return tuple(streams)

    def _send(self, prompt: int) -> TimedAnswer | None:
        """Return the streamed answer to prompt number ``prompt``.

        Returns None if the server failed the request or is gone, or if the capture's time is used up.
        """
        left_s = self._server.left_s()
        if not self._server.running or left_s <= 0:
            return None
        body: dict[str, JSON] = {"prompt": _prompt_text(prompt), "max_tokens": _TOKENS, "temperature": 0.0}
        request = Request(id=f"burst-{prompt:02}", route=Route.COMPLETIONS, body=body)
        outcome = self._server.client.send(request, streamed=True, deadline_s=min(_DEADLINE_S, left_s))
        if outcome.ending is None:
            return outcome
        # A dying server ends a moment after its connection broke: its end is waited for, so that it does not pass for running.
        self._server.wait_for_end()
        return None


def _shows_verify_steps(outcome: TimedAnswer) -> bool:
    return outcome.counters is not None or any(choice.windows is not None for choice in outcome.answer.choices)


def _prompt_text(prompt: int) -> str:
    """Return a prompt repeating one function under several names.

    Any drafter then drafts with success: prompt lookup finds the function in the prompt, and a draft model continues it as its target does.
    """
    word = _WORDS[prompt]
    functions = (f"def {word}_{number}(value):\n    return value + {number}\n" for number in range(1, _FUNCTIONS + 1))
    return "\n\n".join((f"{word} = 0\n", *functions)) + "\n\n"


def _stream_of_answer(prompt: int, outcome: TimedAnswer) -> Stream | None:
    """Return the arrival times of an answer's chunks, and where each ends.

    ``ends`` are the characters of the answer up to each chunk's end. Returns None if the request was refused or brought no text.
    """
    answer, text_arrivals = outcome.answer, [arrival for arrival in outcome.arrivals if arrival.size.characters]
    if not text_arrivals or answer.timing is None:
        return None
    return Stream(
        prompt=prompt,
        text=answer.choice.written,
        ends=tuple(accumulate(arrival.size.characters for arrival in text_arrivals)),
        at_s=tuple(round(arrival.at_s - answer.timing.sent_s, 6) for arrival in text_arrivals),
        tokens=outcome.tokens or len(text_arrivals),  # without a count, one token per chunk
    )

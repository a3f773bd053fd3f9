"""Streamed answers of made-up servers: windows and the time of a step are given, stamps follow."""

from __future__ import annotations

from itertools import accumulate, pairwise

from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import SpecCounters, Usage
from tests.judge.captured_values import answer

PLAIN = (1,) * 91


def stream(windows, *, step_s, request_id="chat-00", pass_index=0, per_chunk=1, usage_tokens=None, told=True, jitter=(), dear=0):
    """An answer with a window every ``step_s``, the first from the prefill; each later chunk has ``per_chunk`` windows.

    Every ``dear``-th step takes twice as long. ``jitter`` are seconds by which chunks are read late, one after another and from the
    beginning again.
    """
    late = [jitter[i % len(jitter)] if jitter else 0.0 for i in range(len(windows))]
    ends_s = [5.1 + (i + (i // dear if dear else 0)) * step_s for i in range(len(windows))]
    read = [ends_s[0], *(at for i, at in enumerate(ends_s[1:], 1) if i % per_chunk == 0 or i == len(windows) - 1)]
    stamps_us = [round(at * 1e6) for at in accumulate((at + wait for at, wait in zip(read, late, strict=False)), max)]
    tokens = sum(windows)
    timing = Timing(
        sent_s=5.0,
        first_s=stamps_us[0] / 1e6,
        last_s=stamps_us[-1] / 1e6,
        done_s=stamps_us[-1] / 1e6 + 0.01,
        first_tokens=windows[0],
        content_s=stamps_us[0] / 1e6,
        gaps_us=tuple(b - a for a, b in pairwise(stamps_us)),
    )
    usage = Usage(prompt_tokens=20, completion_tokens=tokens if usage_tokens is None else usage_tokens)
    known = {"windows": tuple(windows)} if told else {}
    return answer(request_id, range(tokens), timing=timing, usage=usage, pass_index=pass_index, **known)


def passes(windows, *, step_s, count=4, wobble=(1.0, 1.01, 0.99, 1.0), **said):
    """The same stream several times, by steps that take a little more or less."""
    return [stream(windows, step_s=step_s * wobble[i % len(wobble)], pass_index=i, **said) for i in range(count)]


def counted(answers, *, k=3, undrafted=0):
    """What a server counts over ``answers``, of each of which it drafted nothing in the last ``undrafted`` steps."""
    windows = [choice.windows for given in answers for choice in given.choices]
    drafts = sum(len(each) - 1 - undrafted for each in windows)
    return SpecCounters(drafts=drafts, draft_tokens=k * drafts, accepted_tokens=sum(window - 1 for each in windows for window in each[1:]))

"""Arms: what a made-up server answered as transcripts, and what the baseline scores of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.worlds import documents
from benchmarks.worlds.asking import Asking, askings
from benchmarks.worlds.language import END, language, log_mass, ranked, row_of
from benchmarks.worlds.numerics import Kernel
from benchmarks.worlds.server import CORRECT, K, speak
from pytest_specdec.judge.logprob_lists import asked_top
from pytest_specdec.model.transcript import Answer, Choice, ListedTokens, Position, Score, SpecCounters, Transcript, Usage
from pytest_specdec.model.workload import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.worlds.language import Hashes, Ids, Logits
    from benchmarks.worlds.numerics import Boot
    from benchmarks.worlds.server import Fault, Spoken
    from pytest_specdec.model.workload import Request, Workload

__all__ = ["ArmAnswers", "answer", "draft_scores", "scores"]

_ROWS: Final = 4096
"""Positions scored at a time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmAnswers:
    """One arm's answers to one workload, and the prefixes that their tokens stand behind."""

    transcript: Transcript
    prefixes: Mapping[tuple[str, int], Hashes]
    """Of the first choice of every answer, by key."""
    reported: Mapping[tuple[str, int], tuple[float, ...]]
    """Log-probabilities of the first choice's tokens as the arm computed them, whether or not the request asks for them."""


def answer(
    arm: str, workload: Workload, boot: Boot, random: np.random.Generator, *, speculates: bool = False, fault: Fault = CORRECT
) -> ArmAnswers:
    """Return what ``boot`` answers to ``workload``."""
    asked = askings(workload)
    first = _first_alone(asked)
    listed = max((asked_top(request) or 0 for request in workload.requests), default=0)
    spoken = speak(asked, boot, random, speculates=speculates, fault=fault, listed=listed)
    answers, prefixes, reported = [], {}, {}
    numbered = list(enumerate(asked))
    for _, group in groupby(numbered, key=lambda item: item[1].request.id):
        rows = [(first.get(row, row), one) for row, one in group]
        made = _answer(rows, spoken, speculates=speculates)
        answers.append(made)
        row = rows[0][0]
        if made.ok:
            prefixes[made.key] = spoken.prefixes[row, : spoken.lengths[row]]
            reported[made.key] = tuple(spoken.reported[row, : spoken.lengths[row]].tolist())
    transcript = Transcript(
        arm=arm,
        boot=boot.number,
        workload=workload.name,
        digest=workload.digest,
        answers=tuple(answers),
        counters=_counted(answers) if speculates else None,
        preemptions=5 if workload.small_cache else None,
    )
    return ArmAnswers(transcript=transcript, prefixes=prefixes, reported=reported)


def _first_alone(asked: tuple[Asking, ...]) -> dict[int, int]:
    """Return which answer alone in flight repeats which earlier one, by row: the same kernels draw with the same numbers."""
    seen: dict[str, int] = {}
    repeats = {}
    for row, one in enumerate(asked):
        if one.alone and one.request.seed is not None:
            key = json.dumps([one.request.asks, one.request.seed, one.choice])
            repeats[row] = seen.setdefault(key, row)
    return repeats


def _answer(rows: list[tuple[int, Asking]], spoken: Spoken, *, speculates: bool) -> Answer:
    request = rows[0][1].request
    prompt = rows[0][1].prompt_token_ids
    if request.abort_after is not None:
        return Answer(request_id=request.id, status=None, aborted=True)
    choices = tuple(_choice(row, one, spoken, speculates=speculates) for row, one in rows)
    tokens = sum(len(choice.token_ids) for choice in choices)
    usage = Usage(prompt_tokens=len(prompt), completion_tokens=tokens, total_tokens=len(prompt) + tokens)
    return Answer(request_id=request.id, status=200, prompt_token_ids=prompt, choices=choices, usage=usage)


def _choice(row: int, one: Asking, spoken: Spoken, *, speculates: bool) -> Choice:
    length = int(spoken.lengths[row])
    ids = tuple(spoken.tokens[row, :length].tolist())
    windows = _windows(spoken.ended[row, :length]) if speculates else None
    logprobs = one.request.body.get("logprobs")
    reports = logprobs is not None and logprobs is not False
    top = asked_top(one.request) or 0
    return Choice(
        index=one.choice,
        text=documents.text(one.request) if one.request.grammar else "".join(f" t{token}" for token in ids if token != END),
        token_ids=ids,
        finish_reason="stop" if ids[-1] == END and one.request.body.get("ignore_eos") is not True else "length",
        logprobs=tuple(min(value, 0.0) for value in spoken.reported[row, :length].tolist()) if reports else None,
        listed=tuple(_listed(row, step, top, one.request, spoken) for step in range(length)) if reports and top else None,
        windows=windows,
        drafted=(K,) * (len(windows) - 1) if windows else None,
    )


def _windows(ended: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[int, ...]:
    """Return the tokens of every step, the last one possibly cut by the limit."""
    ends = np.flatnonzero(ended)
    if not len(ends) or ends[-1] != len(ended) - 1:
        ends = np.append(ends, len(ended) - 1)
    return tuple(np.diff(ends, prepend=-1).tolist())


def _listed(row: int, step: int, top: int, request: Request, spoken: Spoken) -> ListedTokens:
    token = int(spoken.tokens[row, step])
    ids = spoken.listed[row, step, :top].tolist()
    logprobs = spoken.listed_logprobs[row, step, :top].tolist()
    if request.route is Route.COMPLETIONS and token not in ids:
        ids, logprobs = [*ids, token], [*logprobs, float(spoken.reported[row, step])]
    return ListedTokens(token=f"t{token}", tokens=tuple(f"t{each}" for each in ids), logprobs=tuple(min(v, 0.0) for v in logprobs))


def _counted(answers: list[Answer]) -> SpecCounters:
    windows = [window for each in answers for choice in each.choices for window in (choice.windows or ())[1:]]
    return SpecCounters(
        drafts=len(windows),
        draft_tokens=K * len(windows),
        accepted_tokens=sum(window - 1 for window in windows),
        accepted_per_position=tuple(sum(window - 1 > place for window in windows) for place in range(K)),
    )


def scores(answers: ArmAnswers, scorer: Boot, random: np.random.Generator, *, top_tokens: int) -> tuple[Score, ...]:
    """Return the scores of ``answers`` under the baseline's prefill kernel on the boot ``scorer``."""
    return _scores(answers, "baseline", lambda prefixes: scorer.target(prefixes, Kernel.PREFILL, random), language().likely, top_tokens)


def draft_scores(answers: ArmAnswers, drafter: Boot, random: np.random.Generator, *, top_tokens: int) -> tuple[Score, ...]:
    """Return the same under the draft model that the boot ``drafter`` serves alone."""
    return _scores(answers, "draft", lambda prefixes: drafter.draft(prefixes, random), language().likely_drafts, top_tokens)


def _scores(answers: ArmAnswers, under: str, logits_at: Callable[[Hashes], Logits], likely: Ids, top_tokens: int) -> tuple[Score, ...]:
    kept = [each for each in answers.transcript.answers if each.key in answers.prefixes]
    if not kept:
        return ()
    prefixes = np.concatenate([answers.prefixes[each.key] for each in kept])
    tokens = np.array([token for each in kept for token in each.choice.token_ids], dtype=np.int64)
    flat = [
        position
        for start in range(0, len(tokens), _ROWS)
        for here in [slice(start, start + _ROWS)]
        for position in _positions(logits_at(prefixes[here]), tokens[here], likely[row_of(prefixes[here])], top_tokens)
    ]
    made, at = [], 0
    for each in kept:
        count = len(each.choice.token_ids)
        made.append(
            Score(
                request_id=each.request_id,
                pass_index=each.pass_index,
                arm=answers.transcript.arm,
                under=under,
                positions=tuple(flat[at : at + count]),
                prompt_token_ids=each.prompt_token_ids,
            )
        )
        at += count
    return tuple(made)


def _positions(logits: Logits, tokens: Ids, likely: Ids, top_tokens: int) -> Iterator[Position]:
    mass, best = log_mass(logits), ranked(logits, top_tokens, likely)
    ids, logprobs = best.tolist(), (np.take_along_axis(logits, best, axis=1) - mass).tolist()
    own = (logits[np.arange(len(tokens)), tokens] - mass[:, 0]).tolist()
    for token, logprob, top_ids, top_logprobs in zip(tokens.tolist(), own, ids, logprobs, strict=True):
        yield Position(token_id=token, logprob=logprob, top_ids=tuple(top_ids), top_logprobs=tuple(top_logprobs))

"""Small builders of captured values: what a judge sees, written in one line per thing that matters."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from pytest_specdec.model.captured import Captured, ReportedDraws
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Answer, Choice, Position, Score, SpecCounters, Transcript, Usage
from pytest_specdec.model.workload import Family, Request, Route, Workload

SPECULATING = SpecCounters(drafts=100, draft_tokens=300, accepted_tokens=150)
VARIANT = "draft-k3"


def a_pair(kind=DraftKind.MODEL, k=3):
    draft = Draft(kind=kind, tokens=k, model="draft", ngram_min=2, ngram_max=4)
    return Pair(config="tiny", engine="reference", model="target", variant=Variant(name=VARIANT, draft=draft))


def requests(count, **body):
    return tuple(
        Request(id=f"chat-{i:02}", route=Route.CHAT, body={"messages": [_said(i)], "max_tokens": 64, "temperature": 0, **body})
        for i in range(count)
    )


def _said(i):
    return {"role": "user", "content": f"question {i}"}


def a_workload(asked, **fields):
    return Workload(name="chat", version=1, requests=tuple(asked), **fields)


def answer(
    request_id="chat-00", tokens=(), *, text="", finish="stop", status=200, error=None, pass_index=0, timing=None, usage=None, **choice
):
    choices = (Choice(text=text, token_ids=tuple(tokens), finish_reason=finish, **choice),) if status == 200 else ()
    return Answer(
        request_id=request_id,
        pass_index=pass_index,
        status=status,
        error=error,
        prompt_token_ids=(1, 2, 3),
        choices=choices,
        timing=timing,
        usage=usage,
    )


def timed(request_id="chat-00", *, per_s, tokens=101, ttft_s=0.1, pass_index=0, prompt_tokens=20, burst=None, **choice):
    """An answer of which all tokens but the first came at ``per_s``; the first ``burst`` were read together, when the last of them came."""
    first_s = 5.0 + ttft_s + ((burst or 1) - 1) / per_s
    timing = Timing(sent_s=5.0, first_s=first_s, done_s=5.0 + ttft_s + (tokens - 1) / per_s + (1e-5 if burst else 0.0), first_tokens=burst)
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=tokens)
    return answer(request_id, range(tokens), timing=timing, usage=usage, pass_index=pass_index, **choice)


def transcript(arm, answers, **fields):
    return Transcript(arm=arm, boot=0, workload="chat", digest="0" * 16, answers=tuple(answers), **fields)


def captured(family, speculative, baseline, control=None, *, workload=None, pair=None, counters=SPECULATING, server_failures=(), **fields):
    """What a judge sees; the arms are sequences of answers, or transcripts where more than answers matters.

    Unless ``calibration`` says otherwise the run has shown that its servers are exact.
    """
    fields = {"calibration": calibration(), **fields}
    ids = dict.fromkeys(a.request_id for a in answers_of(baseline))
    return Captured(
        pair=pair or a_pair(),
        workload=workload or a_workload(requests(len(ids))),
        family=Family(family),
        baseline=arm("baseline", baseline),
        control=None if control is None else arm("control", control),
        speculative=replace(arm(VARIANT, speculative), counters=counters, server_failures=tuple(server_failures)),
        **fields,
    )


def calibration(tokens=400, *, noise=0.0, jumps=0, jump=1.0, seed=1):
    """Reported log-probabilities beside their scores: normal noise of that many nats a token, and so many jumps."""
    random = np.random.default_rng(seed)
    deltas = noise * random.standard_normal(tokens)
    deltas[:jumps] += jump
    at = position(7, p_best=0.4, others=((900, 0.3), (901, 0.2)))
    return ReportedDraws(answers=(tuple((at.logprob + float(delta), at) for delta in deltas),))


def answers_of(given):
    return given.answers if isinstance(given, Transcript) else given


def arm(name, given):
    return given if isinstance(given, Transcript) else transcript(name, given)


def position(token, gap=0.0, *, best=None, p_best=0.6, others=((900, 0.05),)):
    """The distribution at one token: ``token`` lies ``gap`` nats below the best one; further top tokens as (id, probability)."""
    top = math.log(p_best)
    top_tokens = [(token if gap == 0.0 and best is None else (800 if best is None else best), top), *((i, math.log(p)) for i, p in others)]
    if gap > 0.0 and top - gap > min(logprob for _, logprob in top_tokens):
        top_tokens.append((token, top - gap))
    top_tokens.sort(key=lambda top_token: -top_token[1])
    return Position(
        token_id=token, logprob=top - gap, top_ids=tuple(i for i, _ in top_tokens), top_logprobs=tuple(logprob for _, logprob in top_tokens)
    )


def score(arm, given, gaps=(), *, under="baseline", **distribution):
    """The score of one answer: ``gaps`` by token index, 0 elsewhere."""
    by_index = dict(gaps)
    positions = tuple(position(token, by_index.get(i, 0.0), **distribution) for i, token in enumerate(given.choice.token_ids))
    return Score(request_id=given.request_id, pass_index=given.pass_index, arm=arm, under=under, positions=positions)

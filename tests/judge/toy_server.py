"""A speculating server of a few lines, greedy, wrong on request: tokens, windows, and both models' opinions of them."""

from __future__ import annotations

import hashlib
import math

from pytest_specdec.model.transcript import Position, Score
from tests.judge.captured_values import VARIANT, answer

VOCABULARY = 40
K = 3


def opinion(name, context):
    """A model's best and second-best token after ``context``, made up but fixed."""
    digest = hashlib.sha256(repr((name, tuple(context[-4:]))).encode()).digest()
    return digest[0] % VOCABULARY, digest[1] % VOCABULARY, digest[2] / 255


def target(context):
    return opinion("target", context)[0]


def draft(context, agreement):
    _, other, luck = opinion("draft", context)
    return target(context) if luck < agreement else other


class Server:
    """``fault``: "", "accept-all", "kv-off-by-one", "recovered", "bonus", "anywhere"."""

    def __init__(self, fault="", agreement=0.7):
        self.fault = fault
        self.agreement = agreement

    def verified(self, context, rejected_before):
        if self.fault == "kv-off-by-one" and rejected_before:
            return target([*context[:-2], context[-1]])
        if self.fault == "anywhere" and opinion("anywhere", context)[2] < 0.1:
            return opinion("target", context)[1]
        return target(context)

    def answer(self, prompt, tokens, request_id):
        out, windows, rejected = [self.verified(prompt, False)], [1], False
        while len(out) < tokens:
            step, rejects = self.step([*prompt, *out], rejected)
            out += step
            windows.append(len(step))
            rejected = rejected or rejects
        return answer(request_id, out[:tokens], windows=tuple(windows), text=" ".join(map(str, out[:tokens])))

    def step(self, context, rejected):
        emitted = []
        for _ in range(K):
            here = [*context, *emitted]
            proposed, wanted = draft(here, self.agreement), self.verified(here, rejected)
            if proposed != wanted and self.fault != "accept-all":
                return [*emitted, (wanted + 1) % VOCABULARY if self.fault == "recovered" else wanted], True
            emitted.append(proposed)
        bonus = self.verified([*context, *emitted], rejected)
        return [*emitted, (bonus + 1) % VOCABULARY if self.fault == "bonus" else bonus], False


def prompt(i):
    return [(7 * i + j) % VOCABULARY for j in range(5)]


def serve(fault="", requests=12, tokens=60, agreement=0.7):
    return [Server(fault, agreement).answer(prompt(i), tokens, f"chat-{i:02}") for i in range(requests)]


def opinions(answers, arm=VARIANT, under="baseline", agreement=0.7):
    """Every answer scored by the target, or by the draft."""
    best = target if under == "baseline" else lambda context: draft(context, agreement)
    return tuple(
        Score(request_id=a.request_id, arm=arm, under=under, positions=tuple(_positions(prompt(i), a.choice.token_ids, best)))
        for i, a in enumerate(answers)
    )


def _positions(start, tokens, best):
    for i, token in enumerate(tokens):
        first = best([*start, *tokens[:i]])
        logprob = math.log(0.7) if token == first else math.log(0.01)
        second = token if token != first else (first + 1) % VOCABULARY
        yield Position(token_id=token, logprob=logprob, top_ids=(first, second), top_logprobs=(math.log(0.7), math.log(0.01)))

"""A toy pair whose distributions are known in full: Markov chains over forty tokens, speculated by another chain or by prompt lookup."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from pytest_specdec.model.captured import Capabilities, Captured
from pytest_specdec.model.pair import CONTROL, Draft, DraftKind, DraftSampling, Pair, Variant
from pytest_specdec.model.transcript import Answer, Choice, Position, Score, SpecCounters, Transcript
from pytest_specdec.model.workload import Family, Request, Route, Workload
from pytest_specdec.stats.draft_distribution import Lookup

VOCABULARY = 40
TOP_TOKENS = 20
ALPHA = 6.25e-5


def chain(seed, spread=1.6):
    return spread * np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY))


TARGET = chain(1)
DRAFT = 0.9 * TARGET + 0.8 * np.random.default_rng(2).normal(size=TARGET.shape)
STALE = 0.5 * TARGET + 0.9 * np.random.default_rng(3).normal(size=TARGET.shape)
CERTAIN = np.eye(VOCABULARY)


def draw(random, p):
    """Draw as ``random.choice(len(p), p=p)`` does, without its checks of p."""
    mass = p.cumsum()
    return int((mass / mass[-1]).searchsorted(random.random(), side="right"))


def softmax(logits):
    mass = np.exp(logits - logits.max())
    return mass / mass.sum()


def processed(logits, temperature=1.0, top_k=0, top_p=1.0):
    return _processed(logits.tobytes(), temperature, top_k, top_p)


@lru_cache(maxsize=1024)
def _processed(logits, temperature, top_k, top_p):
    """Without noise there are as many distributions as tokens."""
    logits = np.frombuffer(logits)
    distribution = softmax(logits / temperature)
    order = np.argsort(-distribution, kind="stable")
    ranked = distribution[order]
    if top_k:
        ranked[top_k:] = 0.0
    ranked /= ranked.sum()
    ranked = np.where(ranked.cumsum() - ranked < top_p, ranked, 0.0)
    back = np.zeros_like(distribution)
    back[order] = ranked / ranked.sum()
    back.flags.writeable = False
    return back


@dataclass
class Server:
    """One arm: what it is asked to do to its distribution, what it really does, and how it goes wrong."""

    random: np.random.Generator
    draft: Draft
    fault: str = ""
    speculates: bool = True
    noise: float = 0.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    lookup: Lookup | None = None
    """The context of the answer that is being written."""

    def distribution(self, table, last):
        logits = table[last] + self.noise * self.random.normal(size=VOCABULARY)
        return processed(logits, self.temperature, self.top_k, self.top_p)

    def propose(self, emitted):
        k = self.draft.tokens
        if not self.speculates or not emitted:
            return []
        if self.draft.kind is DraftKind.NGRAM:
            return [(token, CERTAIN[token]) for token in self.lookup.propose(k)]
        proposed, last = [], emitted[-1]
        for _ in range(k):
            q = self.distribution(DRAFT, last)
            if self.draft.sampling is DraftSampling.GREEDY:
                q = CERTAIN[q.argmax()]
            last = draw(self.random, q)
            proposed.append((last, q))
        return proposed

    def window(self, prompt, emitted, *, stale):
        draft = self.propose(emitted)
        self.drafts += bool(draft)
        self.drafted += len(draft)
        out, last = [], (emitted or prompt)[-1]
        for token, q in draft:
            p = self.distribution(STALE if stale else TARGET, last)
            if self.fault == "accept-all" or self.random.random() * q[token] < p[token] or self._leaks():
                out.append(token)
                last = token
                self.accepted += 1
                continue
            rest = p if self.fault == "resample-from-p" else np.maximum(p - q, 0.0)
            out.append(draw(self.random, rest / rest.sum()))
            return out
        p = self.distribution(STALE if stale else TARGET, last)
        if self.fault == "bonus-from-q" and draft:
            p = self.distribution(DRAFT, last)
        out.append(draw(self.random, p))
        return out

    def _leaks(self):
        return self.fault == "leak" and self.random.random() < 0.2

    def answer(self, request_id, prompt, tokens):
        emitted, windows, rejected = [], [], False
        self.lookup = Lookup(prompt, shortest=max(self.draft.ngram_min, 1), longest=self.draft.ngram_max)
        while len(emitted) < tokens:
            before = self.drafted
            out = self.window(prompt, emitted, stale=rejected and self.fault == "stale")
            drafted = self.drafted - before
            rejected |= len(out) < drafted + 1
            emitted += out
            for token in out:
                self.lookup.append(token)
            windows.append(len(out))
        choice = Choice(token_ids=tuple(emitted[:tokens]), windows=tuple(windows) if self.speculates else None, finish_reason="length")
        return Answer(request_id=request_id, status=200, prompt_token_ids=tuple(prompt), choices=(choice,))


def position(table, last, token):
    distribution, best, logprobs = _listed(table[last].tobytes())
    return Position(token_id=token, logprob=distribution[token], top_ids=best, top_logprobs=logprobs)


@lru_cache(maxsize=1024)
def _listed(logits):
    distribution = np.log(np.maximum(softmax(np.frombuffer(logits)), 1e-300))
    best = np.argsort(-distribution, kind="stable")[:TOP_TOKENS]
    return distribution.tolist(), tuple(best.tolist()), tuple(distribution[best].tolist())


def score(answer, arm, under, table):
    chain_of = (answer.prompt_token_ids[-1], *answer.choice.token_ids)
    positions = tuple(position(table, last, token) for last, token in pairwise(chain_of))
    return Score(request_id=answer.request_id, arm=arm, under=under, positions=positions)


def draft_of(kind="model", k=3):
    sampling = DraftSampling.GREEDY if kind == "greedy" else DraftSampling.PROBABILISTIC
    if kind in {"model", "greedy"}:
        return Draft(kind=DraftKind.MODEL, tokens=k, model="draft", sampling=sampling)
    if kind == "ngram":
        return Draft(kind=DraftKind.NGRAM, tokens=k, ngram_min=1, ngram_max=3)
    return Draft(kind=DraftKind.HEAD, tokens=k)


def captured(kind="model", fault="", *, answers=48, tokens=64, seed=1, noise=0.0, server=None, alpha=ALPHA, windows=True, **body):
    """What a judge sees of ``answers`` sampled answers; ``server`` overrides what the server does with what ``body`` asks."""
    random = np.random.default_rng(seed)
    draft = draft_of(kind)
    done = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **body, **(server or {})}
    arm = Server(random=random, draft=draft_of("model") if kind == "head" else draft, fault=fault, noise=noise, **done)
    prompts = [tuple(random.integers(VOCABULARY, size=60).tolist()) for _ in range(answers)]
    said = tuple(arm.answer(f"r{i:03}", prompt, tokens) for i, prompt in enumerate(prompts))
    if not windows:
        said = tuple(_without_windows(one) for one in said)
    counters = SpecCounters(drafts=arm.drafts, draft_tokens=arm.drafted, accepted_tokens=arm.accepted)
    wished = {"temperature": 1.0, "max_tokens": tokens, **body}
    asked = tuple(Request(id=f"r{i:03}", route=Route.COMPLETIONS, body=wished) for i in range(answers))
    return Captured(
        pair=Pair(config="toy", engine="toy", model="target", variant=Variant(name="v", draft=draft)),
        workload=Workload(name="w", version=1, requests=asked, top_tokens=TOP_TOKENS),
        family=Family.SAMPLING,
        baseline=Transcript(arm="baseline", boot=0, workload="w", digest="d", answers=()),
        control=None,
        speculative=Transcript(arm="v", boot=1, workload="w", digest="d", answers=said, counters=counters),
        scores={"v": tuple(score(one, "v", "baseline", TARGET) for one in said)},
        draft_scores={"v": tuple(score(one, "v", "draft", DRAFT) for one in said)} if kind in {"model", "greedy"} else {},
        capabilities={"v": Capabilities(vocabulary=VOCABULARY)},
        alpha=alpha,
    )


def control(**fields):
    """The same with a baseline that does not speculate in the variant's place."""
    random = np.random.default_rng(9)
    one = captured(answers=8)
    plain = Server(random=random, draft=draft_of(), speculates=False, **fields)
    said = tuple(plain.answer(answer.request_id, answer.prompt_token_ids, 64) for answer in one.speculative.answers)
    transcript = Transcript(arm=CONTROL, boot=2, workload="w", digest="d", answers=said)
    scores = {CONTROL: tuple(score(answer, CONTROL, "baseline", TARGET) for answer in said)}
    return Captured(
        pair=one.pair,
        workload=one.workload,
        family=one.family,
        baseline=one.baseline,
        control=transcript,
        speculative=transcript,
        scores=scores,
        alpha=ALPHA,
        is_control=True,
    )


def _without_windows(answer):
    choice = Choice(token_ids=answer.choice.token_ids, finish_reason="length")
    return Answer(request_id=answer.request_id, status=200, prompt_token_ids=answer.prompt_token_ids, choices=(choice,))

"""Log-probabilities beside the baseline's own reports: of prompts, and at temperature 0 of the tokens that both answered.

After the same tokens both servers report one and the same number, up to the noise that two boots of the baseline show. A token whose two
numbers differ by more, beyond a limit in nats, is off. The baseline serves the model without speculation; it is booted again as the
control. ``captured.alpha`` is this judgement's share of the false-alarm budget.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING

from pytest_specdec.judge.prerequisites import speculating
from pytest_specdec.judge.verdicts import quote, say
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.promise import CheckedTokens
from pytest_specdec.model.verdict import Example, Outcome, Symptom
from pytest_specdec.stats import proportions
from pytest_specdec.stats.noise_comparison import EXACT, TOLERATED, jump_limit, scale, tolerated_factor, tolerated_floor
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer, Transcript
    from pytest_specdec.model.verdict import Verdict

__all__ = [
    "ECHO_TORN",
    "IMPOSSIBLE",
    "MIDDLING",
    "OF_PROMPTS",
    "OF_TOKENS",
    "PROMPTS_MISSING",
    "SHIFTED",
    "check_echo",
    "compare_with_baseline",
]

OF_TOKENS = "reported log-probabilities are not the baseline's"
OF_PROMPTS = "log-probabilities of prompts are not the baseline's"
PROMPTS_MISSING = "log-probabilities of prompts are missing"
ECHO_TORN = "the text does not begin with the prompt that is echoed"
SHIFTED = "reported log-probabilities are those of a neighbouring token"

MIDDLING = (0.02, 0.98)
"""Probabilities between which a single token's difference is judged: noise moves improbable tokens far and certain ones not at all."""
IMPOSSIBLE = 20.0
"""Nats, more than any jump of a logit moves a token: a value so far off is a placeholder, -9999 say, and no log-probability."""
_COMPARED = (1e-5, 0.98)
"""Probabilities between which a difference is judged: below, engines print placeholders and rounded tails; certain tokens show nothing."""
_WRONG_TOKENS = 3
"""Tokens beyond the limit that are enough to fail if single precision has shown that nothing jumps; elsewhere their number is tested."""
_CLOSE = 0.02
"""Nats within which a value counts as that of a neighbouring token."""
_JUMPS = 1e-3
"""Rate of jumps that is tolerated if nothing shows the baseline's."""
_LEAST = 10
"""Compared tokens below which a pass would say nothing."""
_SHOWN = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """One token's log-probability as the judged arm, the speculative server, and the baseline reported it."""

    request_id: str
    index: int
    """Of the token, from 0; in a prompt, from its second token, since its first has no log-probability."""
    prompt_length: int
    """Tokens of the prompt if the token belongs to one, else 0."""
    reported: float
    baseline: float
    neighbours: tuple[float, ...]
    """The baseline's log-probabilities of the tokens before and after it."""

    @property
    def delta(self) -> float:
        return self.reported - self.baseline

    @property
    def is_compared(self) -> bool:
        """True if either value is a probability of .00001 to .98."""
        return any(_COMPARED[0] < exp(min(value, 0.0)) < _COMPARED[1] for value in (self.reported, self.baseline))

    @property
    def is_impossible(self) -> bool:
        """True if no jump explains the arm's value, where the baseline's is neither near 0 nor near 1."""
        return MIDDLING[0] < exp(min(self.baseline, 0.0)) < MIDDLING[1] and abs(self.delta) > IMPOSSIBLE

    @property
    def is_shifted(self) -> bool:
        """True if the arm's value is that of a neighbouring token of the baseline."""
        return any(abs(self.reported - other) < _CLOSE for other in self.neighbours)

    def __str__(self) -> str:
        place = f"prompt token {self.index + 2} of {self.prompt_length}" if self.prompt_length else f"token {self.index + 1}"
        return f"{self.request_id}, {place}: reported {self.reported:.4f}, the baseline {self.baseline:.4f}"


def compare_with_baseline(captured: Captured) -> Verdict:
    """Return the verdict on reported log-probabilities beside the baseline's own.

    REFUSED if every request asks for those of its prompt and the baseline reports none. FAIL if prompts lack log-probabilities that the
    baseline reports, or if more tokens are off, by half a nat or more, than between the baseline's own reports. INCONCLUSIVE if too few
    tokens can be compared. A pass needs accepted drafts too (:func:`speculating`).
    """
    if _wants_prompts(captured) and not any(answer.prompt_logprobs for answer in captured.baseline.answers):
        headline = "the baseline reports no log-probabilities of prompts, so there is nothing to compare with"
        return say(captured, Outcome.REFUSED, headline, cell="no prompt_logprobs")
    missing = _list_missing_prompts(captured)
    if missing:
        headline = f"{PROMPTS_MISSING}: {len(missing)} answers lack them, the baseline's have them; first: {missing[0]}"
        return say(captured, Outcome.FAIL, headline, evidence=missing[:_SHOWN], cell="missing", names=PROMPTS_MISSING)
    pairs = [pair for pair in _pair_with_baseline(captured.speculative, captured) if pair.is_compared]
    peers = _compare_baseline_boots(captured)
    far = [pair for pair in pairs if abs(pair.delta) > peers.limit]
    # One value that is further off than any jump is enough, unless a boot of the baseline reports such a one too.
    is_impossible = any(pair.is_impossible for pair in far) and not peers.is_impossible
    if is_impossible or _beyond_chance(captured, len(far), len(pairs), peers):
        return _fail_logprobs(captured, pairs, far, peers)
    if len(pairs) < _LEAST:
        headline = f"not enough evidence: {len(pairs)} log-probabilities could be compared with the baseline's, {_LEAST} needed"
        return say(captured, Outcome.INCONCLUSIVE, headline, settle=f"{_LEAST - len(pairs)} more such tokens")
    return speculating(captured, needs_rejections=False) or _pass_logprobs(captured, pairs, peers)


def check_echo(captured: Captured) -> Verdict | None:
    """Return FAIL if answers lack the prompt to be echoed.

    An answer counts only if every boot of the baseline echoes its prompt. Returns None without such answers.
    """
    lines = _list_broken_echoes(captured)
    if not lines:
        return None
    headline = f"{ECHO_TORN}: {len(lines)} answers, the baseline's begin with it; first: {lines[0]}"
    return say(captured, Outcome.FAIL, headline, evidence=lines[:_SHOWN], cell="echo", names=ECHO_TORN)


def _wants_prompts(captured: Captured) -> bool:
    """Return True if every request asks for its prompt's log-probabilities, by ``echo`` too."""
    return all(request.body.get("prompt_logprobs") is not None or request.body.get("echo") for request in captured.workload.requests)


def _list_broken_echoes(captured: Captured) -> list[str]:
    """Return a line per answer without the prompt asked for by ``echo``.

    An answer counts only if every boot of the baseline echoes its prompt.
    """
    echo_requests = (request for request in captured.workload.requests if request.body.get("echo") and "prompt" in request.body)
    prompts = {request.id: str(request.body["prompt"]) for request in echo_requests}
    peers = [_by_key(arm) for arm in captured.baseline_boots]
    answers = [answer for answer in captured.speculative.answers if answer.ok and answer.request_id in prompts]
    return [
        f"{answer.request_id}: {quote(answer.choice.text)}"
        for answer in answers
        if not answer.choice.text.startswith(prompts[answer.request_id])
        and all(answer.key in peer and peer[answer.key].choice.text.startswith(prompts[answer.request_id]) for peer in peers)
    ]


def _list_missing_prompts(captured: Captured) -> list[str]:
    """Return a line per answer with missing or surplus prompt log-probabilities.

    Their number is compared with the baseline's for the same request. Prompts of which the baseline reports none are left out.
    """
    baseline = _by_key(captured.baseline)
    pairs = [(answer, baseline[answer.key]) for answer in captured.speculative.answers if answer.ok and answer.key in baseline]
    return [
        f"{answer.request_id}: {len(answer.prompt_logprobs or ())} values, {len(other.prompt_logprobs)} of the baseline"
        for answer, other in pairs
        if other.prompt_logprobs and len(answer.prompt_logprobs or ()) != len(other.prompt_logprobs)
    ]


def _by_key(transcript: Transcript) -> dict[tuple[str, int], Answer]:
    return {answer.key: answer for answer in transcript.answers if answer.ok}


def _pair_with_baseline(transcript: Transcript, captured: Captured) -> Iterator[_Pair]:
    """Yield the log-probabilities of ``transcript``, one arm's answers, paired with the baseline's.

    Pairs are only of equal tokens after equal ones: all of a prompt's, and at temperature 0 those of an answer before its first difference.
    """
    baseline = _by_key(captured.baseline)
    greedy = {request.id for request in captured.workload.requests if request.greedy}
    for answer in transcript.answers:
        other = baseline.get(answer.key)
        if other is None or not answer.ok:
            continue
        yield from _pair_logprobs(answer, other.prompt_logprobs or (), answer.prompt_logprobs or (), prompt=True)
        if answer.request_id in greedy:
            index = first_difference(answer.choice.token_ids, other.choice.token_ids)
            yield from _pair_logprobs(answer, (other.choice.logprobs or ())[:index], (answer.choice.logprobs or ())[:index], prompt=False)


def _pair_logprobs(answer: Answer, baseline_logprobs: Sequence[float], logprobs: Sequence[float], *, prompt: bool) -> Iterator[_Pair]:
    """Yield the pairs of both lists, up to the shorter one's end.

    They are of the prompt's tokens from its second on if ``prompt``, else of the answer's tokens. Each pair also has the baseline's values
    of the neighbouring tokens: a value equal to one of them is shifted by a place.
    """
    prompt_length = len(baseline_logprobs) + 1 if prompt else 0  # a prompt's first token has no value
    for index, (value, other) in enumerate(zip(logprobs, baseline_logprobs, strict=False)):
        neighbours = (*baseline_logprobs[max(0, index - 1) : index], *baseline_logprobs[index + 1 : index + 2])
        yield _Pair(
            request_id=answer.request_id, index=index, prompt_length=prompt_length, reported=value, baseline=other, neighbours=neighbours
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peers:
    """Differences between two reports of the baseline, at tokens that are compared."""

    tokens: int
    """Compared tokens of the control beside the baseline, and of the calibration."""
    noise: float
    """The scale of their distances, in nats."""
    limit: float
    """Nats beyond which a token of the judged arm counts as off."""
    far: int
    """Tokens that count as off between the baseline's own reports."""
    is_impossible: bool
    """Whether a boot reports an impossible value beside the baseline's."""
    is_exact: bool
    """Whether the baseline computes in single precision and no compared token of it jumps."""


def _compare_baseline_boots(captured: Captured) -> _Peers:
    """Return how far two reports of the baseline itself differ.

    They are the control's beside the baseline's, and the calibration's, which are sampled tokens, beside their scores.
    """
    pairs = [pair for boot in captured.baseline_boots[1:] for pair in _pair_with_baseline(boot, captured) if pair.is_compared]
    distances = [abs(pair.delta) for pair in pairs]
    low, high = _COMPARED
    distances += [abs(value - position.logprob) for value, position in captured.calibration if low < exp(position.logprob) < high]
    capabilities = captured.capabilities.get(BASELINE)
    single = capabilities is not None and capabilities.single_precision
    noise = scale([distance**2 for distance in distances])
    limit = jump_limit(noise, tolerated_floor(single_precision=single, one_boot=captured.one_boot))
    # Times the baseline's noise that the judged arm may have: less for prompts, which prefill computes and no verify kernel.
    factor = TOLERATED if _wants_prompts(captured) else tolerated_factor(noise)
    return _Peers(
        tokens=len(distances),
        noise=noise,
        limit=limit,
        # Noise that is smaller by the factor goes beyond ``limit / factor`` as often as the arm's may go beyond ``limit``.
        far=sum(distance > limit / factor for distance in distances),
        is_impossible=any(pair.is_impossible for pair in pairs),
        is_exact=single and max(distances, default=0.0) <= EXACT,
    )


def _beyond_chance(captured: Captured, far: int, tokens: int, peers: _Peers) -> bool:
    """Return True if more tokens are off than by chance.

    ``far`` of ``tokens`` are off; ``peers.far`` of ``peers.tokens`` are between two reports of the baseline, by noise alone.
    """
    if peers.is_exact:  # the servers differ by rounding alone
        return far >= _WRONG_TOKENS
    if not peers.tokens:  # nothing shows how often noise puts a token off
        return bool(far) and proportions.greater_than_rate(far, tokens, _JUMPS) <= captured.alpha
    return proportions.greater_than_other(far, tokens, peers.far, peers.tokens) <= captured.alpha


def _fail_logprobs(captured: Captured, pairs: Sequence[_Pair], far: Sequence[_Pair], peers: _Peers) -> Verdict:
    """Return FAIL, named by what most tokens of ``far`` have in common.

    ``far`` are those of ``pairs`` that are off. The name is SHIFTED if more than half of them have the value of a neighbouring token; else
    OF_PROMPTS if more than half are of prompts; else OF_TOKENS.
    """
    shifted = sum(pair.is_shifted for pair in far)
    are_of_prompts = 2 * sum(pair.prompt_length > 0 for pair in far) > len(far)
    name = SHIFTED if 2 * shifted > len(far) else OF_PROMPTS if are_of_prompts else OF_TOKENS
    worst = max(far, key=lambda pair: abs(pair.delta))
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {len(far)} of {len(pairs)} are off by more than {peers.limit:.2g} nats{_describe_lengths(pairs, far)}; "
        f"of the baseline against itself, {peers.far:,} of {peers.tokens:,}",
        short=(f"first        {far[0]}", f"worst        {worst}"),
        evidence=tuple(map(str, far[:_SHOWN])),
        cell=f"{len(far)} of {len(pairs)} off",
        names=name,
        example=Example(symptom=Symptom.LOGPROBS, request_id=worst.request_id, token=worst.index, limit_nats=peers.limit),
        figures={
            "tokens": float(len(pairs)),
            "tokens_far_off": float(len(far)),
            "tokens_shifted": float(shifted),
            "limit_nats": peers.limit,
        },
    )


def _describe_lengths(pairs: Sequence[_Pair], far: Sequence[_Pair]) -> str:
    """Return a clause on the lengths of prompts with wrong values.

    A fault may concern all prompts of some lengths and nothing else: the clause then says "all". ``far`` are those of ``pairs`` that are
    off. Empty without wrong values of prompts.
    """
    far_lengths = [pair.prompt_length for pair in far if pair.prompt_length]  # 0: not of a prompt
    if not far_lengths:
        return ""
    lengths = sorted(set(far_lengths))
    prompts = f"prompts of {', '.join(map(str, lengths))} tokens"
    of_lengths = sum(pair.prompt_length in lengths for pair in pairs)
    return f": all {of_lengths} of {prompts}" if of_lengths == len(far_lengths) else f", in {prompts}"


def _pass_logprobs(captured: Captured, pairs: Sequence[_Pair], peers: _Peers) -> Verdict:
    """Return PASS with the largest difference from the baseline's reports."""
    worst = max(abs(pair.delta) for pair in pairs)
    lengths = sorted({pair.prompt_length for pair in pairs if pair.prompt_length})
    prompts = f"; prompts of {lengths[0]} to {lengths[-1]} tokens" if lengths else ""
    return say(
        captured,
        Outcome.PASS,
        f"{len(pairs):,} reported log-probabilities within {worst:.2g} nats of the baseline's{prompts}",
        evidence=(
            f"two reports of the baseline differ by {peers.noise:.2g} nats, {peers.far:,} of {peers.tokens:,} tokens jump",
            f"prompts of {lengths} tokens",
        ),
        rules_out=f"{len(pairs):,} tokens compared; values off by {peers.limit:.2g} nats in {_least_rate(captured, len(pairs), peers):.1%} "
        "of them, spread evenly, would have been caught (99%)",
        cell=f"within {worst:.2g} nats",
        promise=CheckedTokens(tokens=len(pairs)),
        figures={"tokens": float(len(pairs)), "worst_nats": worst, "noise_nats": peers.noise},
    )


def _least_rate(captured: Captured, tokens: int, peers: _Peers) -> float:
    """Return the least rate of wrong values caught with probability 0.99.

    ``tokens`` is the number of compared tokens, and ``peers`` the differences between two reports of the baseline.
    """
    # The fewest wrong values that fail. If not even wrong values at all tokens do, their number stands in: the rate is then nearly 1.
    least = next((count for count in range(1, tokens + 1) if _beyond_chance(captured, count, tokens, peers)), tokens)
    # At the upper limit for one value less (two-sided at 98 %, so one-sided at 99 %), fewer than ``least`` come with probability .01.
    return proportions.limits(least - 1, tokens, 0.98).high

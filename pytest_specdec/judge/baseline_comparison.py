"""Baseline comparison: what the records of two runs' baselines have in common, and how probable their differences are by chance alone.

A record has a baseline's prompts, scored positions and answers at temperature 0, each with that of its control, the baseline booted again.
P-values are of Fisher's exact test, one-sided. Most compare the differences between the runs with those that each run shows by itself:
between its boots, or between its tokens and their scores. Without any noise in either run, a difference may have the p-value 0.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_specdec.judge import baseline_noise, old_tokens
from pytest_specdec.judge.baseline_answers import (
    differs_beyond,
    differs_unscored,
    ends_elsewhere,
    has_wrong,
    logprob_of,
    near_tie,
    pair_with_control,
)
from pytest_specdec.judge.baseline_noise import NUMERICS_UP_TO
from pytest_specdec.stats import logit_shift, proportions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_specdec.judge.baseline_noise import AllowedShift, BaselineNoise
    from pytest_specdec.judge.old_tokens import NewTokens, OldTokens
    from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer
    from pytest_specdec.model.transcript import Choice, Position
    from pytest_specdec.stats.logit_shift import Beyond, LogitShift

__all__ = ["BaselineComparison"]


class BaselineComparison:
    """Two runs' records, the noise of both, and what both have in common.

    ``answers`` are the pairs of an old and a new answer to compare. ``tie`` is the gap between two tokens, in nats, that noise or a shift
    of numerics explains. ``is_exact`` says that neither run shows noise, so that any difference is a change.
    """

    old: BaselineRecord
    new: BaselineRecord
    shared: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """The old and the new token ids of each prompt in both runs."""
    answers: list[tuple[GreedyAnswer, GreedyAnswer]]
    """The old and the new answer to each request at temperature 0, after prompts with the same token ids."""
    noise: BaselineNoise | None
    """None if a run did not measure it."""
    noise_nats: float
    """The shift that the baselines' own draws explain, in nats per logit; 0 if the noise is unknown."""
    boots_nats: float
    """The shift explained if noise between boots is added, in nats per logit; 0 if the noise is unknown."""
    shift: LogitShift | None
    """Over all prompts; None if too few have scores in both runs."""
    tie: float
    """The gap, in nats, up to which noise or a shift of numerics explains another token."""
    is_exact: bool
    """Whether neither run shows any noise."""
    is_broad: bool
    """Whether the shift over all prompts surely exceeds one of numerics."""
    is_apart: bool
    """Whether the shift over all prompts surely exceeds noise, that between boots included."""
    old_tokens: OldTokens | None
    """The old tokens under the new scores; None if the new run scored none of this old run."""
    new_tokens: NewTokens | None
    """The new sampled tokens under the old scores; None if this old run's baseline scored none."""

    def __init__(self, old: BaselineRecord, new: BaselineRecord) -> None:
        """Keep two baseline records, and derive the values for all figures."""
        self.old, self.new = old, new
        shared = sorted(old.prompts.keys() & new.prompts.keys())
        self.shared = {prompt: (old.prompts[prompt], new.prompts[prompt]) for prompt in shared}
        unchanged = {prompt for prompt, (before, after) in self.shared.items() if tuple(before) == tuple(after)}
        answers = ((before, new.greedy[asks]) for asks, before in old.greedy.items() if asks in new.greedy)
        self.answers = [(before, after) for before, after in answers if before.prompt in unchanged]
        self.noise = baseline_noise.measure(old, new)
        self.noise_nats, self.boots_nats = (self.noise.measured.nats, self.noise.with_boots.nats) if self.noise else (0.0, 0.0)
        self.is_exact = self.noise is not None and self.noise.is_exact
        self._by_prompt = _shared_positions(old, new)
        self.shift = logit_shift.measure(self._by_prompt.values())
        # Even the shift's lower limit lies beyond one of numerics, or beyond noise with what another boot may add.
        self.is_broad = self.shift is not None and self.shift.low > max(self.noise_nats, NUMERICS_UP_TO)
        self.is_apart = self.shift is not None and self.shift.low > self.boots_nats
        # A larger shift than one of numerics is a change itself, and must not excuse other tokens too. If unknown, boots' noise counts.
        explained_nats = max(self.noise_nats, min(self.shift.high, NUMERICS_UP_TO)) if self.shift else self.boots_nats
        self.tie = near_tie(explained_nats)
        # Old answers scored by the new baseline, and new ones by the old. Another old run, whose are left out, began at another time.
        old_scored = [captured for captured in new.old_answers if captured.speculative.started_at == old.began.get(captured.workload.name)]
        new_scored = [captured for captured in new.new_answers if captured.baseline.started_at == old.began.get(captured.workload.name)]
        self.old_tokens = old_tokens.examine(old_scored, near_tie=self.tie if self.noise else 0.0)
        self.new_tokens = old_tokens.examine_new(new_scored, is_noise_known=self.noise is not None)

    @property
    def lacks_chats(self) -> bool:
        """True if the old run scored prompts of chats, and no chat's prompt is in both runs."""
        return bool(self.old.chats & self.old.prompts.keys()) and self.old.chats.isdisjoint(self.shared)

    @property
    def is_of_one_day(self) -> bool:
        """True if both runs began all their workloads on one and the same day, in UTC."""
        return len(self.old.days) == 1 and self.old.days == self.new.days

    def count_beyond(self, nats: float, *, largest: bool = False) -> Beyond:
        """Return how many prompts have a shift beyond ``nats`` between the runs.

        A prompt's shift has two estimates, by the median of its positions' differences and by their upper tenth. Both must be beyond, or
        with ``largest`` one of them, so that a shift at a part of the positions is seen too.
        """
        return logit_shift.count_beyond(self._by_prompt.values(), nats, largest=largest)

    def p_of_prompts(self, allowed: AllowedShift, *, largest: bool = False) -> float:
        """Return the p-value of the prompts with a shift beyond ``allowed``.

        ``allowed`` is a shift that noise explains. It has the draws that show this noise, answers of each run with the scores of the same
        run. The share of prompts beyond it is compared with the share of these answers. ``largest``, for both, is that of
        :meth:`count_beyond`. The p-value is 0 if any prompt is beyond, no such answer is, and neither run shows noise.
        """
        between, within = self.count_beyond(allowed.nats, largest=largest), allowed.count_beyond(allowed.nats, largest=largest)
        if between.prompts and not within.prompts and self.is_exact:
            return 0.0
        return proportions.greater_than_other(between.prompts, between.compared, within.prompts, within.compared)

    def p_of_beyond(self, count: int) -> float:
        """Return the p-value of ``count`` answers that differ beyond noise."""
        return self._p_of_answers(count, lambda before, after: differs_beyond(before, after, self.tie))

    def p_of_unscored(self, count: int) -> float:
        """Return the p-value of ``count`` answers that differ at a token without a usable score."""
        return self._p_of_answers(count, differs_unscored)

    def p_of_ends(self, count: int) -> float:
        """Return the p-value of ``count`` answers that end elsewhere after the same tokens."""
        return self._p_of_answers(count, lambda before, after: ends_elsewhere(before.choice, after))

    def _p_of_answers(self, count: int, is_other: Callable[[GreedyAnswer, Choice], bool]) -> float:
        """Return the p-value of ``count`` differing answers among those compared.

        Their share is compared with that of differing pairs of a baseline's and its control's answer, in both runs together; ``is_other``
        says whether the two of a pair differ. The p-value is 1 if ``count`` is 0.
        """
        old_differ, new_differ = (
            [is_other(answer, control) for answer, control in pair_with_control(record)] for record in (self.old, self.new)
        )
        if not count:
            return 1.0
        # Between exact servers one answer is proof. The new run's pairs may differ all the same, by a change: only the old ones must not.
        if self.is_exact and not any(old_differ):
            return 0.0
        pairs = len(old_differ) + len(new_differ)
        return proportions.greater_than_other(count, len(self.answers), sum(old_differ) + sum(new_differ), pairs)

    def p_of_wrong(self, count: int) -> float:
        """Return the p-value of ``count`` wrong old answers under the new scores.

        An answer at temperature 0 is wrong if one of its tokens lies below the best one by more than noise. The share of wrong ones among
        the old answers that the new run scored is compared with that among answers scored by the run that gave them, which noise alone
        makes wrong. The p-value is 1 if ``count`` is 0 or the new run scored no old answer. For any other count it is 0 if neither run
        shows noise.
        """
        if self.old_tokens is None or not count:
            return 1.0
        if self.is_exact:
            return 0.0
        scored_by_new = self.old_tokens.likeliest  # the old answers at temperature 0 among those that the new run scored
        scored_by_own_run = [answer for record in (self.old, self.new) for answer in record.greedy.values() if answer.positions]
        wrong_by_noise = sum(has_wrong(answer, self.tie) for answer in scored_by_own_run)
        return proportions.greater_than_other(count, scored_by_new, wrong_by_noise, len(scored_by_own_run))

    def p_of_repeats(self) -> float:
        """Return the p-value of the differences between the new baseline and its control.

        They are compared with those between the old baseline and its control; only answers that differ beyond noise count.
        """
        old_differ, new_differ = (
            [differs_beyond(answer, control, self.tie) for answer, control in pair_with_control(record)] for record in (self.old, self.new)
        )
        return proportions.greater_than_other(sum(new_differ), len(new_differ), sum(old_differ), len(old_differ))


def _shared_positions(old: BaselineRecord, new: BaselineRecord) -> dict[str, list[tuple[float, Position]]]:
    """Return the old tokens' log-probabilities in both runs, by prompt.

    ``prefixes`` of a record are its scored positions, by a digest of all token ids before them: one key is one prefix in both runs. The two
    tokens after it may differ. The old one is compared: a pair is its old log-probability, and the new position with this token and its new
    log-probability put in. Positions where the latter is unknown are left out. Empty if a run has no ``prefixes``, as one scored by another
    engine's server, whose distribution is not the baseline's.
    """
    by_prompt: dict[str, list[tuple[float, Position]]] = {}
    for key, before in old.prefixes.items():
        after = new.prefixes.get(key)
        # Where the new run tells no more than a bound, the highest possible value is taken, so that no shift is overstated.
        logprob = _highest_logprob_of(before.position, after.position) if after else None
        if after is not None and logprob is not None and not math.isnan(before.position.logprob):
            position = replace(after.position, token_id=before.position.token_id, logprob=logprob)
            by_prompt.setdefault(before.prompt, []).append((before.position.logprob, position))
    return by_prompt


def _highest_logprob_of(before: Position, after: Position) -> float | None:
    """Return the highest log-probability that the old token may have in the new run.

    ``before`` and ``after`` are the old and the new position after one prefix. If the new run emitted or lists the old token, that is its
    log-probability. An unlisted token is no more probable than the last listed one, whose log-probability understates the shift. None if
    nothing is listed, or if this bound is no lower than the old log-probability: it shows no shift then.
    """
    logprob = logprob_of(before.token_id, after)
    if logprob is None and after.top_logprobs and min(after.top_logprobs) < before.logprob:
        return min(after.top_logprobs)
    return logprob

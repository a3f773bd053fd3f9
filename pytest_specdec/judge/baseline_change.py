"""Baseline change: whether two runs' baselines give the same answers, and what kind of change there is if not.

Compared are the prompts' token ids, the distributions after the same prefixes (stats/logit_shift.py), and the answers at temperature 0:
the first tokens that differ, and their ends where the tokens are the same. Where the new baseline scored what the old one answered, every
token of it is compared, sampled ones too (judge/old_tokens.py); in a run of two engines the old one scores the new one's sampled tokens as
well. What is tolerated comes from the noise that both runs measured (judge/baseline_noise.py): a shift has to exceed it by its median and
by its upper tenth. Where a run had one boot of its baseline, a shift no larger than the noise between boots may be is UNKNOWN.

Nothing is called the same by what was not seen, or by what chance hardly explains. UNKNOWN says why.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec.judge import baseline_noise, dated_prompts, old_tokens
from pytest_specdec.judge.baseline_answers import (
    are_alike,
    differs_beyond,
    differs_unscored,
    ends_elsewhere,
    find_difference,
    has_wrong,
    logprob_of,
    near_tie,
    repeats,
)
from pytest_specdec.judge.baseline_noise import NUMERICS_UP_TO, RESOLUTION
from pytest_specdec.stats import logit_shift, proportions
from pytest_specdec.stats.logprob_noise import INVALID_ABOVE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pytest_specdec.judge.baseline_noise import AllowedShift
    from pytest_specdec.judge.old_tokens import NewTokens, OldTokens, TokenDifference
    from pytest_specdec.model.baseline_record import BaselineRecord, GreedyAnswer
    from pytest_specdec.model.transcript import Choice, Position
    from pytest_specdec.stats.logit_shift import Beyond, LogitShift

__all__ = ["BaselineChange", "BaselineRelation", "ChangeKind", "compare"]

WEIGHTS_UP_TO = 1.0
"""Nats per logit up to which a shift is one of quantised weights or caches, beyond which the model is another one or answers wrongly."""
NOISIER = 2.0
"""Times the old run's noise, a standard deviation, from which on the new run's is a change."""
LEAST_ANSWERS = 5
"""Answers at temperature 0 that have to be compared before baselines are called the same."""
ALPHA = 1e-3
"""Level of each test: of the shift, and of each number that is compared with that of the runs' own boots."""
DOUBTFUL = 0.1
"""P-value of such a number up to which baselines are not called the same."""
FAR = 3.0
"""Times the tolerance beyond which the distributions after a single prompt keep baselines from being called the same."""


class BaselineRelation(StrEnum):
    """What two baselines are to each other."""

    SAME = "same"
    CHANGED = "changed"
    UNKNOWN = "unknown"
    """Too little was seen in both runs."""


class ChangeKind(StrEnum):
    """What changed, as far as it can be told."""

    CHAT_TEMPLATE = "the chat template gives other prompts"
    TOKENIZER = "prompts have other token ids"
    NUMERICS = "numerics, as of another kernel or precision"
    WEIGHTS = "a broad shift, as of quantised weights or caches"
    MODEL = "another model, or one that answers wrongly"
    SOME_PROMPTS = "a shift after some of the prompts"
    SOME_POSITIONS = "a shift at some positions after many prompts"
    NOISE = "the new build's own numbers are noisier than those of any kernel"
    DEFAULTS = "default sampling parameters"
    DRAWS = "sampled answers follow another distribution"
    ANSWERS = "single answers differ by more than noise"
    REPEATS = "the new build does not repeat its own answers at temperature 0"
    ENDS = "answers end elsewhere after the same tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineChange:
    """The comparison of two runs' baselines."""

    relation: BaselineRelation
    why: str = ""
    """Why the relation is unknown; of a changed one, why there may be other changes than ``kinds``. Empty where neither holds."""
    kinds: tuple[ChangeKind, ...] = ()
    possible_kinds: tuple[ChangeKind, ...] = ()
    """Kinds that show beside a broad shift, which may explain them as well as hide them."""
    shift: LogitShift | None = None
    """None if too few prompts have scores in both runs."""
    allowed: float = 0.0
    """Nats per logit that the noise of both runs explains; 0 if a run did not measure it."""
    boots_allow: float = 0.0
    """The same with what boots may keep; larger where a run had one boot of its baseline."""
    prompts: int = 0
    """Prompts in both runs."""
    other_prompts: tuple[str, ...] = ()
    """Of them, those with other token ids: their route and fields, as text."""
    dated_prompts: int = 0
    """Of them, those that differ in a few ids, as by a date (judge/dated_prompts.py); they are compared after the old ids only."""
    undated_prompts: int = 0
    """Of those that differ in a few ids, the prompts for which no date explains it."""
    answers: int = 0
    """Requests at temperature 0 that both baselines answered after the same prompt."""
    alike: int = 0
    """Of the answers, those with the same tokens and the same end."""
    differences: tuple[TokenDifference, ...] = ()
    """Where scored answers first differ, the widest gap first."""
    beyond: int = 0
    """Of the differences, those that noise does not explain."""
    other_ends: tuple[str, ...] = ()
    """Requests whose answers end elsewhere after the same tokens, by id."""
    lost: tuple[str, ...] = ()
    """Requests at temperature 0 that the old baseline answered and the new one did not, or with no token, by id."""
    old: OldTokens | None = None
    """The old baseline's tokens under the new scores; None where the new run scored none of this old run."""
    new: NewTokens | None = None
    """The new baseline's sampled tokens under the old scores; None where this old run's baseline scored none."""

    @property
    def is_worse(self) -> bool:
        """True if answers changed by more than numerics."""
        return any(kind is not ChangeKind.NUMERICS for kind in self.kinds)


def compare(old: BaselineRecord, new: BaselineRecord) -> BaselineChange:
    """Return the comparison of the baselines of two stored runs.

    CHANGED if prompts have other token ids; if the distributions' shift exceeds the noise of both runs, over all prompts or after more
    prompts than by chance; if the new run is much noisier than the old one; if more answers at temperature 0 differ beyond noise, or end
    elsewhere, than between each baseline and its control; or if sampled tokens show another distribution or other defaults. Otherwise
    UNKNOWN if a run did not measure its noise, too little was compared, an answer is missing, or a difference is unlikely to be chance,
    and else SAME. A change hides no such reason: what is left unknown beside it is said too.
    """
    comparison = _Comparison(old, new)
    change = comparison.measure()
    kinds = tuple(dict.fromkeys(comparison.kinds(change)))
    why = comparison.why_unknown(change, kinds)
    relation = BaselineRelation.CHANGED if kinds else BaselineRelation.UNKNOWN if why else BaselineRelation.SAME
    return replace(change, relation=relation, why=why, kinds=kinds)


class _Comparison:
    """Two records, the noise of both runs, and what both have in common."""

    def __init__(self, old: BaselineRecord, new: BaselineRecord) -> None:
        """Keep two runs' baseline records, and derive what all figures need.

        ``_tie`` is the gap, in nats, up to which noise or a shift of numerics explains another token. The shift over all prompts is broad
        if it surely exceeds one of numerics, and apart if it surely exceeds noise, that between boots included.
        """
        self._old, self._new = old, new
        shared = old.prompts.keys() & new.prompts.keys()
        self._shared = {prompt: (old.prompts[prompt], new.prompts[prompt]) for prompt in sorted(shared)}
        self._noise = baseline_noise.measure(old, new)
        self._allowed, self._boots_allow = (self._noise.measured.nats, self._noise.with_boots.nats) if self._noise else (0.0, 0.0)
        same = {prompt for prompt, (before, after) in self._shared.items() if tuple(before) == tuple(after)}
        answers = ((before, new.greedy[asks]) for asks, before in old.greedy.items() if asks in new.greedy)
        self._answers = [(before, after) for before, after in answers if before.prompt in same]
        self._by_prompt = _shared_positions(old, new)
        self._shift = logit_shift.measure(self._by_prompt.values())
        self._tie = near_tie(max(self._allowed, min(self._shift.high, NUMERICS_UP_TO)) if self._shift else self._boots_allow)
        self._is_exact = self._noise is not None and self._noise.is_exact
        self._is_broad = self._shift is not None and self._shift.low > max(self._allowed, NUMERICS_UP_TO)
        self._is_apart = self._shift is not None and self._shift.low > self._boots_allow
        # The new run may have scored other stored answers than this old run's: when they began tells them apart.
        scored = [captured for captured in new.old_answers if captured.speculative.started_at == old.began.get(captured.workload.name)]
        self._old_tokens = old_tokens.examine(scored, near_tie=self._tie if self._noise else 0.0)
        scored = [captured for captured in new.new_answers if captured.baseline.started_at == old.began.get(captured.workload.name)]
        self._new_tokens = old_tokens.examine_new(scored, is_noise_known=self._noise is not None)

    @property
    def _shares_chats(self) -> bool:
        return not self._old.chats.isdisjoint(self._shared)

    @property
    def _is_of_one_day(self) -> bool:
        return len(self._old.days) == 1 and self._old.days == self._new.days

    def measure(self) -> BaselineChange:
        """Return the comparison's figures, with the relation still undecided.

        The relation is SAME here; :func:`compare` replaces it if the figures show a change, or too little to tell. Prompts with a few other
        token ids count as dated: the chat template may write the day into a prompt. No difference counts as beyond noise if a run did not
        measure its noise.
        """
        days = max(1, len(self._old.days) * len(self._new.days))
        changed = dated_prompts.classify(self._shared, self._old.chats, days=days, is_one_day=self._is_of_one_day)
        first_differences = [find_difference(before, after.choice) for before, after in self._answers]
        differences = sorted(filter(None, first_differences), key=lambda difference: (-difference.gap, difference.request_id))
        return BaselineChange(
            relation=BaselineRelation.SAME,
            shift=self._shift,
            allowed=self._allowed,
            boots_allow=self._boots_allow,
            prompts=len(self._shared),
            other_prompts=changed.other,
            dated_prompts=len(changed.few),
            undated_prompts=len(changed.undated),
            answers=len(self._answers),
            alike=sum(are_alike(before.choice, after.choice) for before, after in self._answers),
            differences=tuple(differences),
            beyond=sum(difference.gap > self._tie for difference in differences) if self._noise else 0,
            other_ends=tuple(
                before.request_id
                for before, after in self._answers
                if ends_elsewhere(before.choice, after.choice, had_other_limits=before.limit != after.limit)
            ),
            lost=tuple(before.request_id for asks, before in self._old.greedy.items() if before.choice.token_ids and self._lacks(asks)),
            old=self._old_tokens,
            new=self._new_tokens,
            possible_kinds=tuple(self._draw_kinds()) if self._noise and self._is_broad else (),
        )

    def _lacks(self, asks: str) -> bool:
        """Return True if the new run sent a request and has no answer to compare.

        ``asks`` is the request's key in ``greedy``. The new answer is missing, or it has no token and its prompt was not scored in both
        runs, so that it is not among the answers compared. False if the new run did not send the request.
        """
        after = self._new.greedy.get(asks)
        return asks in self._new.unanswered if after is None else not (after.choice.token_ids or after.prompt in self._shared)

    def kinds(self, change: BaselineChange) -> Iterator[ChangeKind]:
        """Yield the kinds of change, a cause before its possible consequences."""
        if change.other_prompts:
            yield ChangeKind.CHAT_TEMPLATE if set(change.other_prompts) <= self._old.chats else ChangeKind.TOKENIZER
        if self._noise:
            yield from self._shift_kinds(self._noise.with_boots)
            if self._noise.new.low > NOISIER * max(self._noise.old_up_to, RESOLUTION):
                yield ChangeKind.NUMERICS if self._noise.new.nats <= INVALID_ABOVE else ChangeKind.NOISE
            yield from () if self._is_broad else self._draw_kinds()  # beside a broad shift they are only possible
            if self._p_of_beyond(change.beyond) <= ALPHA or self._has_more_wrong():
                yield ChangeKind.ANSWERS
            if self._repeats_less():
                yield ChangeKind.REPEATS
        if self._p_of_ends(change) <= ALPHA:
            yield ChangeKind.ENDS

    def why_unknown(self, change: BaselineChange, kinds: Collection[ChangeKind]) -> str:
        """Return the first reason why the rest may not be called the same.

        The rest is what ``kinds`` do not explain: all if there are none. Empty without a reason.
        """
        shift_high = change.shift.high if change.shift else 0.0
        # If not even all answers differing would be significant, no smaller number can be.
        controls_tell = self._p_of_beyond(change.answers) <= ALPHA
        likeliest = change.old.likeliest if change.old else 0
        dated = 0 if change.other_prompts else change.dated_prompts
        is_shift_known = self._noise is not None and any(self._shift_kinds(self._noise.with_boots))
        reasons = (
            (
                not self._noise,
                "a run did not measure its noise, as a config with a scorer or an engine without log-probabilities does not",
            ),
            (
                dated > 0 and not likeliest,
                f"{dated} prompts differ in a few token ids, as where the chat template writes the date",
            ),
            (
                dated > 0 and change.undated_prompts > 0,
                f"{change.undated_prompts} prompts differ in a few token ids, and no date in the header of the chat template explains them",
            ),
            (
                dated > 0 and self._is_of_one_day,
                f"{dated} prompts differ in a few token ids, and both runs are of one day, in UTC: only a local date explains them",
            ),
            (
                bool(change.lost),
                f"answers of the old run at temperature 0 that the new one refused, failed or left empty: {len(change.lost)}",
            ),
            (bool(self._old.chats & self._old.prompts.keys()) and not self._shares_chats, "no chat's prompt was scored in both runs"),
            (change.shift is None, "too few prompts were scored in both runs"),
            (not is_shift_known and self._is_of_boots(), self._describe_boots()),
            (
                not is_shift_known and shift_high > 2.0 * self._allowed,
                f"too few prompts to tell a shift of {shift_high:.2g} nats per logit from noise",
            ),
            (
                max(change.answers, likeliest) < LEAST_ANSWERS,
                f"too few answers at temperature 0 are in both runs: {max(change.answers, likeliest)}",
            ),
            (
                not controls_tell and not self._has_more_wrong(likeliest),
                "the controls' answers are missing, or differ beyond noise too often for any other answers to show",
            ),
        )
        return next((reason for holds, reason in reasons if holds), "") or next(self._doubts(change, kinds), "")

    def _doubts(self, change: BaselineChange, kinds: Collection[ChangeKind]) -> Iterator[str]:
        """Yield a sentence for each difference between the runs that is no proof of a change, yet hardly chance.

        Its p-value is :data:`DOUBTFUL` at most. Prompts that differ by far have none: they count if there are more than among the draws of
        the runs themselves. Differences that one of ``kinds``, or a shift over all prompts, explains are left out. Nothing is yielded if
        a run did not measure its noise.
        """
        unscored = sum(differs_unscored(before, after.choice) for before, after in self._answers)
        allowed = self._noise.measured if self._noise else None
        if allowed is None:
            return
        explained = max(allowed.nats, self._shift.high) if self._shift and self._is_apart else allowed.nats
        prompts, far = self._count_beyond(allowed.nats).prompts, self._count_beyond(FAR * explained).prompts
        is_far = far > allowed.count_beyond(FAR * explained).prompts
        answers_explained, ends_explained = (self._is_broad or kind in kinds for kind in (ChangeKind.ANSWERS, ChangeKind.ENDS))
        some_explained = not {ChangeKind.SOME_PROMPTS, ChangeKind.SOME_POSITIONS}.isdisjoint(kinds)
        all_explained = some_explained or self._is_apart
        doubts = (
            (answers_explained, self._p_of_beyond(change.beyond), f"answers at temperature 0 differ by more than noise: {change.beyond}"),
            (ends_explained, self._p_of_ends(change), f"answers end elsewhere: {len(change.other_ends)}"),
            (
                answers_explained,
                self._p_of_answers(unscored, differs_unscored),
                f"answers differ where no score tells by how much: {unscored}",
            ),
            (all_explained, self._p_of_prompts(allowed), f"prompts with other distributions: {prompts}"),
            (all_explained, self._p_of_prompts(allowed, largest=True), "some positions have other distributions"),
            (some_explained, 0.0 if is_far else 1.0, f"prompts with other distributions, by far more than noise explains: {far}"),
        )
        yield from (
            f"{what}, which is no proof and hardly chance" for is_explained, p, what in doubts if not is_explained and p <= DOUBTFUL
        )

    def _shift_kinds(self, allowed: AllowedShift) -> Iterator[ChangeKind]:
        """Yield the kind of the distributions' change beyond ``allowed``, one at most.

        It is NUMERICS, WEIGHTS or MODEL by the size of a shift over all prompts, else SOME_PROMPTS or SOME_POSITIONS.
        """
        shift = self._shift
        if shift is not None and shift.low > allowed.nats:
            is_numerics, is_weights = shift.nats <= NUMERICS_UP_TO, shift.nats <= WEIGHTS_UP_TO
            yield ChangeKind.NUMERICS if is_numerics else ChangeKind.WEIGHTS if is_weights else ChangeKind.MODEL
        elif self._p_of_prompts(allowed) <= ALPHA:
            yield ChangeKind.SOME_PROMPTS
        elif self._p_of_prompts(allowed, largest=True) <= ALPHA:
            yield ChangeKind.SOME_POSITIONS

    def _is_of_boots(self) -> bool:
        """Return True if distributions differ beyond the noise within one boot."""
        return self._noise is not None and any(self._shift_kinds(self._noise.measured))

    def _describe_boots(self) -> str:
        """Return a sentence on the runs of one boot, with a remedy."""
        one_boot = [name for name, record in (("old", self._old), ("new", self._new)) if record.boots == 1]
        runs = f"the {one_boot[0]} run" if len(one_boot) == 1 else "each run"
        apart = f"the {self._shift.nats:.2g} nats per logit between the runs" if self._shift else "what is between the runs"
        return f"{runs} had one boot of its baseline, which may keep {apart}: judge at standard depth, where the control is another boot"

    def _draw_kinds(self) -> Iterator[ChangeKind]:
        """Yield the kinds of change shown by sampled tokens.

        After a broad shift of the distributions they may only follow from it.
        """
        if self._old_tokens and self._old_tokens.has_other_defaults:
            yield ChangeKind.DEFAULTS
        if any(tokens and tokens.draws_otherwise for tokens in (self._old_tokens, self._new_tokens)):
            yield ChangeKind.DRAWS

    def _has_more_wrong(self, wrong_answers: int | None = None) -> bool:
        """Return True if old answers are wrong more often under the new scores.

        An answer at temperature 0 is wrong if one of its tokens lies below the best one by more than noise. Compared, by Fisher's exact
        test, are the old answers under the new scores with each run's answers under its own. ``wrong_answers``, if given, replaces the
        number counted under the new scores. A single one is enough if neither run shows noise.
        """
        old = self._old_tokens
        count = old.wrong_answers if old and wrong_answers is None else wrong_answers
        if not old or not count:
            return False
        if self._is_exact:
            return True
        own = [has_wrong(answer, self._tie) for record in (self._old, self._new) for answer in record.greedy.values() if answer.positions]
        return bool(own) and proportions.greater_than_other(count, old.likeliest, sum(own), len(own)) <= ALPHA

    def _p_of_prompts(self, allowed: AllowedShift, *, largest: bool = False) -> float:
        """Return the p-value of the prompts with a shift beyond ``allowed``.

        By Fisher's exact test against the runs' own draws. ``largest`` takes the larger of a prompt's two estimates, by median and by upper
        tenth, instead of the smaller. It is 0 as soon as one prompt is beyond, if neither run shows noise and no draw is beyond.
        """
        shared, own = self._count_beyond(allowed.nats, largest=largest), allowed.count_beyond(allowed.nats, largest=largest)
        if shared.prompts and not own.prompts and self._is_exact:
            return 0.0
        return proportions.greater_than_other(shared.prompts, shared.compared, own.prompts, own.compared)

    def _count_beyond(self, nats: float, *, largest: bool = False) -> Beyond:
        """Return the prompts beyond ``nats`` between the two runs."""
        return logit_shift.count_beyond(self._by_prompt.values(), nats, largest=largest)

    def _p_of_beyond(self, count: int) -> float:
        return self._p_of_answers(count, lambda before, after: differs_beyond(before, after, self._tie))

    def _p_of_ends(self, change: BaselineChange) -> float:
        return self._p_of_answers(len(change.other_ends), lambda before, after: ends_elsewhere(before.choice, after))

    def _p_of_answers(self, count: int, is_other: Callable[[GreedyAnswer, Choice], bool]) -> float:
        """Return the p-value of ``count`` other answers among those compared.

        By Fisher's exact test against the pairs of baseline and control within each run; ``is_other`` says whether the two of a pair
        differ. It is 1 if ``count`` is 0. It is 0 for any larger count if neither run shows noise and the old run's pairs do not differ.
        """
        before, after = ([is_other(answer, control) for answer, control in repeats(record)] for record in (self._old, self._new))
        if count and self._is_exact and not any(before):
            return 0.0
        own, trials = sum(before) + sum(after), len(before) + len(after)
        return proportions.greater_than_other(count, len(self._answers), own, trials) if count else 1.0

    def _repeats_less(self) -> bool:
        """Return True if the new baseline and its control differ more often than the old ones did."""
        before, after = (
            [differs_beyond(answer, control, self._tie) for answer, control in repeats(record)] for record in (self._old, self._new)
        )
        return proportions.greater_than_other(sum(after), len(after), sum(before), len(before)) <= ALPHA


def _shared_positions(old: BaselineRecord, new: BaselineRecord) -> dict[str, list[tuple[float, Position]]]:
    """Return the positions scored in both runs, by prompt.

    A pair is the old log-probability of the old token and the new run's position after the same prefix, with the old token in the place
    of its own; positions where the new run does not bound that token's log-probability are left out. Empty if a run was scored by another
    engine's server, whose distribution is not the baseline's.
    """
    by_prompt: dict[str, list[tuple[float, Position]]] = {}
    for key, before in old.prefixes.items():
        after = new.prefixes.get(key)
        logprob = _highest_logprob_of(before.position, after.position) if after else None
        if after is not None and logprob is not None and not math.isnan(before.position.logprob):
            position = replace(after.position, token_id=before.position.token_id, logprob=logprob)
            by_prompt.setdefault(before.prompt, []).append((before.position.logprob, position))
    return by_prompt


def _highest_logprob_of(before: Position, after: Position) -> float | None:
    """Return the highest log-probability of the old token in the new run.

    ``before`` and ``after`` are the old and the new position after one prefix. An unlisted token has at most that of the last listed
    token, with which the shift counts at its least. None if that bound is no lower than the old value: the token may just be unlisted.
    """
    logprob = logprob_of(before.token_id, after)
    if logprob is None and after.top_logprobs and min(after.top_logprobs) < before.logprob:
        return min(after.top_logprobs)
    return logprob

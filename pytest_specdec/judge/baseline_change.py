"""Baseline change: whether two runs' baselines give the same answers, and what kind of change there is if not.

A baseline is the model served without speculation. The shift between two is the standard deviation, in nats, of one logit's difference
after the same prefixes (stats/logit_shift.py). One beyond the noise of both runs (judge/baseline_noise.py) is a change. Compared are the
prompts' token ids too, and the answers at temperature 0, by their first other tokens and their ends. Where the new baseline scored what the
old one answered, every token of it is compared, sampled ones too (judge/old_tokens.py); in a run of two engines the old one scores the new
one's sampled tokens as well. Where a run had one boot of its baseline, a shift that noise between boots may explain is UNKNOWN.

Nothing is called the same by what was not seen, or by what chance hardly explains. UNKNOWN says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING

from pytest_specdec.judge import dated_prompts
from pytest_specdec.judge.baseline_answers import are_alike, differs_unscored, ends_elsewhere, find_difference
from pytest_specdec.judge.baseline_comparison import BaselineComparison
from pytest_specdec.judge.baseline_noise import NUMERICS_UP_TO, RESOLUTION
from pytest_specdec.stats.logprob_noise import INVALID_ABOVE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pytest_specdec.judge.baseline_noise import AllowedShift, BaselineNoise
    from pytest_specdec.judge.old_tokens import NewTokens, OldTokens, TokenDifference
    from pytest_specdec.model.baseline_record import BaselineRecord
    from pytest_specdec.stats.logit_shift import LogitShift

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

    CHANGED if at least one kind of change is proven (:func:`_find_kinds`). Otherwise UNKNOWN if there is a reason against calling the
    baselines the same (:func:`_find_unknown`): a run did not measure its noise, too little was compared, an answer is missing, or a
    difference is no proof and hardly chance. Else SAME.
    """
    comparison = BaselineComparison(old, new)
    change = _measure_change(comparison)
    kinds = tuple(dict.fromkeys(_find_kinds(comparison, change)))
    # The reason is stated for CHANGED too: other changes may be left unknown beside the proven ones.
    why = _find_unknown(comparison, change, kinds)
    relation = BaselineRelation.CHANGED if kinds else BaselineRelation.UNKNOWN if why else BaselineRelation.SAME
    return replace(change, relation=relation, why=why, kinds=kinds)


def _measure_change(comparison: BaselineComparison) -> BaselineChange:
    """Return the comparison's figures, with the relation still undecided.

    The relation is SAME here; :func:`compare` replaces it if the figures show a change, or too little to tell.
    """
    old, answers = comparison.old, comparison.answers
    # A run over midnight has two days: each pair of an old and a new one may have changed a prompt in its own way.
    day_pairs = max(1, len(old.days) * len(comparison.new.days))
    changed_prompts = dated_prompts.classify(comparison.shared, old.chats, days=day_pairs, is_one_day=comparison.is_of_one_day)
    first_differences = [find_difference(before, after.choice) for before, after in answers]
    differences = sorted(filter(None, first_differences), key=lambda difference: (-difference.gap, difference.request_id))
    # Without a measured noise no gap can be called wider than it explains, and no draws can be called others.
    beyond = sum(difference.gap > comparison.tie for difference in differences) if comparison.noise else 0
    possible_kinds = tuple(_draw_kinds(comparison)) if comparison.noise and comparison.is_broad else ()
    return BaselineChange(
        relation=BaselineRelation.SAME,
        shift=comparison.shift,
        allowed=comparison.noise_nats,
        boots_allow=comparison.boots_nats,
        prompts=len(comparison.shared),
        other_prompts=changed_prompts.other,
        dated_prompts=len(changed_prompts.few),
        undated_prompts=len(changed_prompts.undated),
        answers=len(answers),
        alike=sum(are_alike(before.choice, after.choice) for before, after in answers),
        differences=tuple(differences),
        beyond=beyond,
        other_ends=tuple(
            before.request_id
            for before, after in answers
            if ends_elsewhere(before.choice, after.choice, had_other_limits=before.limit != after.limit)
        ),
        lost=tuple(before.request_id for asks, before in old.greedy.items() if before.choice.token_ids and _is_lost(comparison, asks)),
        old=comparison.old_tokens,
        new=comparison.new_tokens,
        possible_kinds=possible_kinds,
    )


def _is_lost(comparison: BaselineComparison, asks: str) -> bool:
    """Return True if the new run sent a request and has no answer to compare.

    ``asks``, its route and fields as text, is the key of its answer at temperature 0 (``greedy``). False if the new run did not send it.
    """
    after = comparison.new.greedy.get(asks)
    if after is None:
        return asks in comparison.new.unanswered
    # Without a token, and without a prompt scored in both runs, nothing of it is compared.
    return not (after.choice.token_ids or after.prompt in comparison.shared)


def _find_kinds(comparison: BaselineComparison, change: BaselineChange) -> Iterator[ChangeKind]:
    """Yield the kinds of change, a cause before its possible consequences.

    ``change`` has the figures of the comparison. Kinds of distributions, noise, draws and other tokens are looked for only if both runs
    measured their noise. Differences count if their p-value, against those that each run shows by itself, is :data:`ALPHA` at most.
    """
    if change.other_prompts:
        # If only prompts of chats changed, the chat template did it. A tokenizer changes other prompts too.
        is_in_chats_alone = set(change.other_prompts) <= comparison.old.chats
        yield ChangeKind.CHAT_TEMPLATE if is_in_chats_alone else ChangeKind.TOKENIZER
    if comparison.noise:
        # A shift that another boot of the same build may have is no proof of a change.
        yield from _shift_kinds(comparison, comparison.noise.with_boots)
        new_noise = comparison.noise.new
        # Even the lower limit of the new noise is over twice the upper limit of the old one.
        if new_noise.low > NOISIER * max(comparison.noise.old_up_to, RESOLUTION):
            # Kernels and precision explain noise up to INVALID_ABOVE, more is the build's own fault.
            yield ChangeKind.NUMERICS if new_noise.nats <= INVALID_ABOVE else ChangeKind.NOISE
        # A shift over all prompts larger than one of numerics (is_broad) moves sampled tokens too: their kinds are then only possible ones.
        if not comparison.is_broad:
            yield from _draw_kinds(comparison)
        # Of new answers, those with another token that noise does not explain; of old ones, those with such a token by the new scores.
        wrong = change.old.wrong_answers if change.old else 0
        if comparison.p_of_beyond(change.beyond) <= ALPHA or comparison.p_of_wrong(wrong) <= ALPHA:
            yield ChangeKind.ANSWERS
        if comparison.p_of_repeats() <= ALPHA:
            yield ChangeKind.REPEATS
    if comparison.p_of_ends(len(change.other_ends)) <= ALPHA:
        yield ChangeKind.ENDS


def _shift_kinds(comparison: BaselineComparison, allowed: AllowedShift) -> Iterator[ChangeKind]:
    """Yield the kind of the distributions' change, one at most.

    ``allowed`` is a shift that noise explains. If even the lower limit of the shift over all prompts exceeds it, the kind follows from the
    size: NUMERICS, WEIGHTS or MODEL. Else prompts whose own shift exceeds it count, if they are more than noise explains. A prompt's shift
    has two estimates, by the median of its positions and by their upper tenth: SOME_PROMPTS if both exceed it, SOME_POSITIONS if only the
    larger one does (``largest``).
    """
    shift = comparison.shift
    if shift is not None and shift.low > allowed.nats:
        is_numerics, is_weights = shift.nats <= NUMERICS_UP_TO, shift.nats <= WEIGHTS_UP_TO
        yield ChangeKind.NUMERICS if is_numerics else ChangeKind.WEIGHTS if is_weights else ChangeKind.MODEL
    elif comparison.p_of_prompts(allowed) <= ALPHA:
        yield ChangeKind.SOME_PROMPTS
    elif comparison.p_of_prompts(allowed, largest=True) <= ALPHA:
        yield ChangeKind.SOME_POSITIONS


def _draw_kinds(comparison: BaselineComparison) -> Iterator[ChangeKind]:
    """Yield the kinds of change shown by sampled tokens.

    Each run's sampled tokens are held against the other run's distribution, where that scored them. After a broad shift of the
    distributions these kinds may only follow from it.
    """
    old, new = comparison.old_tokens, comparison.new_tokens
    if old and old.has_other_defaults:  # by answers of both runs, so that ``new`` needs no such test
        yield ChangeKind.DEFAULTS
    if (old and old.draws_otherwise) or (new and new.draws_otherwise):
        yield ChangeKind.DRAWS


def _find_unknown(comparison: BaselineComparison, change: BaselineChange, kinds: Collection[ChangeKind]) -> str:
    """Return the first reason to doubt that nothing else has changed; empty without any.

    ``kinds`` are the changes that are proven; a difference that they explain is no doubt. An unknown noise comes first; then prompts,
    missing answers, distributions, answers that show too little, and differences that are hardly chance.
    """
    noise = comparison.noise
    if noise is None:
        return "a run did not measure its noise, as a config with a scorer or an engine without log-probabilities does not"
    reasons = chain(
        _doubt_prompts(comparison, change),
        _doubt_missing(comparison, change),
        _doubt_distributions(comparison, noise),
        _doubt_answers(comparison, change),
        _doubt_chance(comparison, change, kinds, noise),
    )
    return next(reasons, "")


def _doubt_prompts(comparison: BaselineComparison, change: BaselineChange) -> Iterator[str]:
    """Yield doubts about prompts with a few other token ids.

    The chat template may write the day into a prompt, which is no change. Nothing is yielded without such prompts. Nor is anything if
    prompts have many other ids, for which a change of the chat template or the tokenizer is reported.
    """
    if change.other_prompts or not change.dated_prompts:
        return
    what = f"{change.dated_prompts} prompts differ in a few token ids"
    # After other ids nothing can be compared, unless the new run scored old answers: it scored them after the old ids.
    if change.old is None or not change.old.likeliest:
        yield f"{what}, as where the chat template writes the date"
    if change.undated_prompts:
        yield f"{what}, and no date in the header of the chat template explains them"
    if comparison.is_of_one_day:
        yield f"{what}, and both runs are of one day, in UTC: only a local date explains them"


def _doubt_missing(comparison: BaselineComparison, change: BaselineChange) -> Iterator[str]:
    """Yield doubts from missing answers, chats and scored prompts."""
    if change.lost:
        yield f"answers of the old run at temperature 0 that the new one refused, failed or left empty: {len(change.lost)}"
    if comparison.lacks_chats:
        yield "no chat's prompt was scored in both runs"
    if change.shift is None:
        yield "too few prompts were scored in both runs"


def _doubt_distributions(comparison: BaselineComparison, noise: BaselineNoise) -> Iterator[str]:
    """Yield reasons to suspect shifted distributions all the same.

    ``noise.measured`` is the shift that the draws of both runs explain, and ``noise.with_boots`` adds what another boot may.
    """
    if any(_shift_kinds(comparison, noise.with_boots)):
        return  # a proven shift, and so a kind of change
    # A shift beyond the measured noise alone may be one between boots.
    if any(_shift_kinds(comparison, noise.measured)):
        yield _describe_boots(comparison)
    shift = comparison.shift
    # A shift within the noise may be larger in truth, where its upper limit is far above what noise explains.
    if shift is not None and shift.high > 2.0 * noise.measured.nats:
        yield f"too few prompts to tell a shift of {shift.high:.2g} nats per logit from noise"


def _describe_boots(comparison: BaselineComparison) -> str:
    """Return a clause on runs with one baseline boot, with a remedy.

    A boot may add something to each logit that stays as long as it runs. One boot, which answers and scores, does not show it: all of the
    shift between two runs may be of that kind. Callers ensure that at least one of the runs has one boot.
    """
    one_boot = [name for name, record in (("old", comparison.old), ("new", comparison.new)) if record.boots == 1]
    runs = f"the {one_boot[0]} run" if len(one_boot) == 1 else "each run"
    shift = comparison.shift
    apart = f"the {shift.nats:.2g} nats per logit between the runs" if shift else "what is between the runs"
    return f"{runs} had one boot of its baseline, which may keep {apart}: judge at standard depth, where the control is another boot"


def _doubt_answers(comparison: BaselineComparison, change: BaselineChange) -> Iterator[str]:
    """Yield reasons to call answers at temperature 0 too few.

    They are compared in two ways, and enough in one of them will do: old answers with new ones, and old answers with the new run's scores.
    """
    both_answered, old_scored = change.answers, change.old.likeliest if change.old else 0
    if max(both_answered, old_scored) < LEAST_ANSWERS:
        yield f"too few answers at temperature 0 are in both runs: {max(both_answered, old_scored)}"
    # If all of them were changed, and neither number would be significant, no smaller one can be.
    if comparison.p_of_beyond(both_answered) > ALPHA and comparison.p_of_wrong(old_scored) > ALPHA:
        yield "the controls' answers are missing, or differ beyond noise too often for any other answers to show"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """One difference between the two runs, with its chance."""

    what: str
    p_value: float
    is_explained: bool
    """Whether a kind of change, or a shift over all prompts, explains it already."""


def _doubt_chance(
    comparison: BaselineComparison, change: BaselineChange, kinds: Collection[ChangeKind], noise: BaselineNoise
) -> Iterator[str]:
    """Yield a sentence on each unexplained difference too large for chance.

    Its p-value is :data:`DOUBTFUL` at most, but may be too large to prove a change. Differences that ``kinds``, the proven changes, or a
    shift over all prompts explain are left out.
    """
    allowed = noise.measured
    unscored = sum(differs_unscored(before, after.choice) for before, after in comparison.answers)
    prompts = comparison.count_beyond(allowed.nats).prompts
    # A broad shift, larger than one of numerics, changes answers too.
    are_answers_explained = comparison.is_broad or ChangeKind.ANSWERS in kinds
    are_ends_explained = comparison.is_broad or ChangeKind.ENDS in kinds
    # A shift over all prompts, if it is sure, explains prompts beyond noise, but not prompts far beyond the shift itself.
    is_shift_of_some = not {ChangeKind.SOME_PROMPTS, ChangeKind.SOME_POSITIONS}.isdisjoint(kinds)
    are_prompts_explained = is_shift_of_some or comparison.is_apart
    differences = (
        _Difference(
            what=f"answers at temperature 0 differ by more than noise: {change.beyond}",
            p_value=comparison.p_of_beyond(change.beyond),
            is_explained=are_answers_explained,
        ),
        _Difference(
            what=f"answers end elsewhere: {len(change.other_ends)}",
            p_value=comparison.p_of_ends(len(change.other_ends)),
            is_explained=are_ends_explained,
        ),
        _Difference(
            what=f"answers differ where no score tells by how much: {unscored}",
            p_value=comparison.p_of_unscored(unscored),
            is_explained=are_answers_explained,
        ),
        _Difference(
            what=f"prompts with other distributions: {prompts}",
            p_value=comparison.p_of_prompts(allowed),
            is_explained=are_prompts_explained,
        ),
        _Difference(
            what="some positions have other distributions",
            p_value=comparison.p_of_prompts(allowed, largest=True),
            is_explained=are_prompts_explained,
        ),
    )
    doubts = [difference.what for difference in differences if not difference.is_explained and difference.p_value <= DOUBTFUL]
    far = _count_far_prompts(comparison, allowed)
    if far and not is_shift_of_some:
        doubts.append(f"prompts with other distributions, by far more than noise explains: {far}")
    yield from (f"{doubt}, which is no proof and hardly chance" for doubt in doubts)


def _count_far_prompts(comparison: BaselineComparison, allowed: AllowedShift) -> int:
    """Return the number of prompts that differ by far between the runs.

    ``allowed`` is the shift that noise explains, with the draws that show this noise. 0 unless the prompts are more than the draws' answers
    that lie as far from their scores, by noise alone.
    """
    # A shift over all prompts that is surely beyond noise explains as much as its upper limit.
    explained = max(allowed.nats, comparison.shift.high) if comparison.shift and comparison.is_apart else allowed.nats
    far_prompts = comparison.count_beyond(FAR * explained).prompts
    far_by_noise = allowed.count_beyond(FAR * explained).prompts
    return far_prompts if far_prompts > far_by_noise else 0

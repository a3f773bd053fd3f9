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

    CHANGED if prompts have other token ids; if the distributions' shift exceeds the noise of both runs, over all prompts or after more
    prompts than by chance; if the new run is much noisier than the old one; if sampled tokens show another distribution or other defaults;
    if more answers at temperature 0 differ beyond noise, or end elsewhere, than between each baseline and its control, its second boot; or
    if the new baseline and its control differ more often than the old ones. Otherwise UNKNOWN if a run did not measure its noise, too
    little was compared, an answer is missing, or a difference is unlikely to be chance, and else SAME. ``why`` has such a reason for
    CHANGED too: other changes may be left unknown beside the ones that show.
    """
    comparison = BaselineComparison(old, new)
    change = _measure_change(comparison)
    kinds = tuple(dict.fromkeys(_find_kinds(comparison, change)))
    why = _find_unknown(comparison, change, kinds)
    relation = BaselineRelation.CHANGED if kinds else BaselineRelation.UNKNOWN if why else BaselineRelation.SAME
    return replace(change, relation=relation, why=why, kinds=kinds)


def _measure_change(comparison: BaselineComparison) -> BaselineChange:
    """Return the comparison's figures, with the relation still undecided.

    The relation is SAME here; :func:`compare` replaces it if the figures show a change, or too little to tell. Prompts with a few other
    token ids count as dated: the chat template may write the day into a prompt. No difference counts as beyond noise, and no kind as
    possible, if a run did not measure its noise.
    """
    old, new, answers = comparison.old, comparison.new, comparison.answers
    # A run over midnight has two days: each pair of an old and a new one may have changed a prompt in its own way.
    day_pairs = max(1, len(old.days) * len(new.days))
    changed_prompts = dated_prompts.classify(comparison.shared, old.chats, days=day_pairs, is_one_day=comparison.is_of_one_day)
    first_differences = [find_difference(before, after.choice) for before, after in answers]
    differences = sorted(filter(None, first_differences), key=lambda difference: (-difference.gap, difference.request_id))
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
        beyond=sum(difference.gap > comparison.tie for difference in differences) if comparison.noise else 0,
        other_ends=tuple(
            before.request_id
            for before, after in answers
            if ends_elsewhere(before.choice, after.choice, had_other_limits=before.limit != after.limit)
        ),
        lost=tuple(before.request_id for asks, before in old.greedy.items() if before.choice.token_ids and _is_lost(comparison, asks)),
        old=comparison.old_tokens,
        new=comparison.new_tokens,
        possible_kinds=tuple(_draw_kinds(comparison)) if comparison.noise and comparison.is_broad else (),
    )


def _is_lost(comparison: BaselineComparison, asks: str) -> bool:
    """Return True if the new run sent a request and has no answer to compare.

    ``asks`` is the request as text, the key of its answer at temperature 0 (``greedy``). False if the new run did not send the request.
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
        # A chat template makes the prompts of chats alone; a tokenizer changes others too.
        yield ChangeKind.CHAT_TEMPLATE if set(change.other_prompts) <= comparison.old.chats else ChangeKind.TOKENIZER
    if comparison.noise:
        yield from _shift_kinds(comparison, comparison.noise.with_boots)
        # Even the lower limit of the new noise is over twice the upper limit of the old one.
        if comparison.noise.new.low > NOISIER * max(comparison.noise.old_up_to, RESOLUTION):
            yield ChangeKind.NUMERICS if comparison.noise.new.nats <= INVALID_ABOVE else ChangeKind.NOISE
        # Beside a broad shift of the distributions the kinds of draws are only possible ones, since they may follow from it.
        yield from () if comparison.is_broad else _draw_kinds(comparison)
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
    size: NUMERICS, WEIGHTS or MODEL. Else single prompts count: SOME_PROMPTS if more of them exceed it than by chance by most of their
    positions, SOME_POSITIONS if by their largest differences alone (``largest``).
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
    if old and old.has_other_defaults:
        yield ChangeKind.DEFAULTS
    if (old and old.draws_otherwise) or (new and new.draws_otherwise):
        yield ChangeKind.DRAWS


def _find_unknown(comparison: BaselineComparison, change: BaselineChange, kinds: Collection[ChangeKind]) -> str:
    """Return a reason against calling the rest the same, or nothing.

    It is the first of several. The rest is what ``kinds``, the changes that show, do not explain: all if there are none. An unknown noise
    comes first; then prompts, missing answers, distributions, answers that show too little, and differences that are hardly chance.
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

    The chat template may write the day into a prompt, which is no change. Nothing is yielded without such prompts, or if others have many
    other ids: these are a kind of change already.
    """
    if change.other_prompts or not change.dated_prompts:
        return
    what = f"{change.dated_prompts} prompts differ in a few token ids"
    # Otherwise old answers at temperature 0, which the new run scored after the old ids, have compared these prompts all the same.
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

    ``noise.measured`` is the shift that each run's own draws explain, and ``noise.with_boots`` adds what another boot may. A shift between
    the two is a doubt, and so is one whose upper limit is over twice what noise explains. Nothing is yielded for a shift beyond both, a
    kind of change already.
    """
    if any(_shift_kinds(comparison, noise.with_boots)):
        return
    if any(_shift_kinds(comparison, noise.measured)):
        yield _describe_boots(comparison)
    shift = comparison.shift
    if shift is not None and shift.high > 2.0 * comparison.noise_nats:
        yield f"too few prompts to tell a shift of {shift.high:.2g} nats per logit from noise"


def _describe_boots(comparison: BaselineComparison) -> str:
    """Return a clause on runs with one baseline boot, with a remedy.

    At least one of the two runs must have one boot: only there may noise between boots add to the noise that was measured.
    """
    one_boot = [name for name, record in (("old", comparison.old), ("new", comparison.new)) if record.boots == 1]
    runs = f"the {one_boot[0]} run" if len(one_boot) == 1 else "each run"
    shift = comparison.shift
    apart = f"the {shift.nats:.2g} nats per logit between the runs" if shift else "what is between the runs"
    return f"{runs} had one boot of its baseline, which may keep {apart}: judge at standard depth, where the control is another boot"


def _doubt_answers(comparison: BaselineComparison, change: BaselineChange) -> Iterator[str]:
    """Yield reasons to call answers at temperature 0 too few.

    There are too few of them, or so many differ between each run's baseline and its control that no number of changed answers would be
    significant.
    """
    likeliest = change.old.likeliest if change.old else 0  # old answers at temperature 0 that the new run scored
    if max(change.answers, likeliest) < LEAST_ANSWERS:
        yield f"too few answers at temperature 0 are in both runs: {max(change.answers, likeliest)}"
    # If not even all of them differing would be significant, no smaller number can be.
    if comparison.p_of_beyond(change.answers) > ALPHA and comparison.p_of_wrong(likeliest) > ALPHA:
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
    """Yield a sentence per unexplained difference, no proof yet hardly chance.

    Its p-value is :data:`DOUBTFUL` at most. A difference is explained by a change in ``kinds``, or by a shift over all prompts. Prompts
    that differ by far have no p-value: they count if there are more than among the runs' own draws, unless ``kinds`` explain them.
    """
    allowed = noise.measured
    unscored = sum(differs_unscored(before, after.choice) for before, after in comparison.answers)
    prompts = comparison.count_beyond(allowed.nats).prompts
    are_answers_explained = comparison.is_broad or ChangeKind.ANSWERS in kinds
    are_ends_explained = comparison.is_broad or ChangeKind.ENDS in kinds
    are_far_explained = not {ChangeKind.SOME_PROMPTS, ChangeKind.SOME_POSITIONS}.isdisjoint(kinds)
    are_prompts_explained = are_far_explained or comparison.is_apart
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
    if far and not are_far_explained:
        doubts.append(f"prompts with other distributions, by far more than noise explains: {far}")
    yield from (f"{doubt}, which is no proof and hardly chance" for doubt in doubts)


def _count_far_prompts(comparison: BaselineComparison, allowed: AllowedShift) -> int:
    """Return the number of prompts that differ by far between the runs.

    Far is beyond :data:`FAR` times the shift that noise explains (``allowed``) or, if larger, that a sure shift over all prompts explains
    at its upper limit. 0 if no more prompts lie so far than answers do among the runs' own draws, which show noise alone.
    """
    explained = max(allowed.nats, comparison.shift.high) if comparison.shift and comparison.is_apart else allowed.nats
    far = comparison.count_beyond(FAR * explained).prompts
    return far if far > allowed.count_beyond(FAR * explained).prompts else 0

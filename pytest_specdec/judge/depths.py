"""Depths of long contexts: how long prompts are at each, and how many drafts are accepted after them.

A depth is a part of the server's context limit, such as ``half``. Its prompts fill the context up to there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pytest_specdec.judge.verdicts import say
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.prompts.long import LIMIT_PARTS, Kind, copied_text, kind_of, limit_part
from pytest_specdec.stats import proportions
from pytest_specdec.stats.sequences import first_difference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.model.captured import Captured
    from pytest_specdec.model.transcript import Answer
    from pytest_specdec.model.verdict import Verdict

__all__ = ["check_drafts_by_depth", "depth_figures", "depth_lengths", "describe_copies", "list_acceptance", "prompt_tokens"]

_NEXT_TO_NOTHING = 0.1
"""Fraction of the shallowest acceptance up to which drafts count as dead at a depth: a drafter trained on short texts keeps more."""
_HALF = 0.5
"""The same where the config states that drafts reach that far."""
_COPIES = (Kind.COPY, Kind.REPEAT)
"""Kinds of which the text is the same at every depth."""
_LEAST_STEPS = 4
"""Whole verify steps on copied text that a depth needs to be compared: long drafts that are accepted leave few, and Fisher's test holds its
level with any number."""
_TITLES = {Kind.COPY: "copying", Kind.REPEAT: "repeating", Kind.CONTINUE: "going on", Kind.SAMPLED: "drawn"}


def prompt_tokens(captured: Captured) -> Mapping[str, int]:
    """Return the tokens of each request's prompt, by request id.

    They are those of its ids, or for a text the count of a server that answered it. Prompts of unknown length are left out.
    """
    sent = {request.id: len(prompt) for request in captured.workload.requests if isinstance(prompt := request.body["prompt"], list | tuple)}
    counts = {answer.request_id: answer.prompt_tokens for arm in (captured.speculative, captured.baseline) for answer in arm.answers}
    return {name: tokens for name, tokens in counts.items() if tokens} | sent


def depth_lengths(captured: Captured) -> dict[str, int]:
    """Return the tokens of the prompts at each depth, the shallowest first.

    Prompts at one depth have about as many; the last one's number is taken.
    """
    depths = {
        limit_part(request_id): tokens for request_id, tokens in prompt_tokens(captured).items() if limit_part(request_id) in LIMIT_PARTS
    }
    return dict(sorted(depths.items(), key=lambda item: item[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthAcceptance:
    """The drafts accepted on one kind of text at one depth, with the tokens of each verify step (``windows``)."""

    depth: str
    prompt_tokens: int
    windows: tuple[int, ...]
    """Tokens of each whole verify step."""
    draft_tokens: int
    """Draft tokens of a step, by the config or as the longest window shows."""
    drafted: bool
    """Whether the server reports a draft for any answer; True for an answer without such a report."""
    has_steps: bool
    """Whether the answers show verify steps at all, on copied text or not."""

    @property
    def accepted_tokens(self) -> int:
        """Accepted draft tokens; a window's last token is not one of them."""
        return sum(min(window - 1, self.draft_tokens) for window in self.windows)

    def count_accepting(self, place: int) -> int:
        """Return the steps that accept the draft token at ``place``, from 1."""
        return sum(window > place for window in self.windows)

    @property
    def offered_tokens(self) -> int:
        """Offered draft tokens, counted as ``draft_tokens`` for every step."""
        return self.draft_tokens * len(self.windows)

    @property
    def rate(self) -> float:
        """Accepted over offered, 0 for none."""
        return self.accepted_tokens / self.offered_tokens if self.offered_tokens else 0.0

    @property
    def length(self) -> float:
        """Tokens per verify step, 0 without one."""
        return sum(self.windows) / len(self.windows) if self.windows else 0.0

    @property
    def positions(self) -> tuple[float, ...]:
        """The share of steps that accept each draft position, from the first."""
        return tuple(self.count_accepting(place) / len(self.windows) for place in range(1, self.draft_tokens + 1))

    def __str__(self) -> str:
        if not self.windows:
            return f"{self.prompt_tokens:,} tokens: {'the answers copy nothing' if self.has_steps else 'no whole verify step seen'}"
        positions = " ".join(f"{share:.0%}" for share in self.positions)
        return f"{self.prompt_tokens:,} tokens: {self.length:.2f} a step over {len(self.windows)} steps, by position {positions}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DepthPair:
    """The acceptance on one kind of copied text at two depths."""

    shallow: DepthAcceptance
    """At the shallowest depth."""
    deep: DepthAcceptance

    @property
    def p_value(self) -> float:
        """The p-value of fewer accepting steps at the deeper depth.

        By Fisher's exact test for each draft position and Bonferroni's bound over them: steps are counted, since the tokens of one depend
        on each other.
        """
        counts = [
            (self.shallow.count_accepting(place), len(self.shallow.windows), self.deep.count_accepting(place), len(self.deep.windows))
            for place in range(1, self.shallow.draft_tokens + 1)
        ]
        return min(1.0, len(counts) * min(proportions.greater_than_other(*of_place) for of_place in counts))


def _measure_acceptance(captured: Captured, kind: Kind) -> list[DepthAcceptance]:
    """Return the acceptance of one kind of requests by depth, the shallowest first.

    Of answers that copy, only the steps within the copied text count: it is the same at every depth.
    """
    of_kind = [answer for answer in captured.speculative.answers if answer.ok and kind_of(answer.request_id) == kind]
    # A step emits its accepted draft tokens and one more. If the config does not state the number drafted, the longest step shows it.
    longest_step = max((tokens for answer in of_kind for tokens in answer.choice.steps), default=1)
    draft_tokens = captured.pair.variant.draft.tokens or longest_step - 1
    result = []
    for depth, tokens in depth_lengths(captured).items():
        answers = [answer for answer in of_kind if limit_part(answer.request_id) == depth]
        result.append(
            DepthAcceptance(
                depth=depth,
                prompt_tokens=tokens,
                windows=tuple(window for answer in answers for window in _whole_steps(answer, copies=kind in _COPIES)),
                draft_tokens=draft_tokens,
                drafted=any(map(_may_have_drafts, answers)),
                has_steps=any(answer.choice.steps for answer in answers),
            )
        )
    return result


def _may_have_drafts(answer: Answer) -> bool:
    """Return False if the server reports that it drafted nothing for an answer; True without a report."""
    return any(answer.choice.drafted) if answer.choice.drafted else True


def _whole_steps(answer: Answer, *, copies: bool) -> tuple[int, ...]:
    """Return the tokens of each of an answer's whole verify steps.

    If the answer ``copies`` from its prompt, only steps that end within the copied text are returned. The first entry of the choice's
    ``windows`` is the prefill's: the steps start after its tokens.
    """
    windows = answer.choice.steps
    if not copies:
        return windows
    copied_tokens = first_difference(answer.choice.token_ids, copied_text(answer.prompt_token_ids, len(answer.choice.token_ids)))
    prefill_tokens = sum((answer.choice.windows or ())[:1])
    starts = accumulate(windows, initial=prefill_tokens)
    return tuple(window for window, start in zip(windows, starts, strict=False) if start + window <= copied_tokens)


def check_drafts_by_depth(captured: Captured) -> Verdict | None:
    """Return FAIL if drafts on copied text die with the depth; None otherwise.

    Each depth is compared with the shallowest, at an equal share of alpha. It fails with a tenth or less of that acceptance, or with half
    or less where the config states that drafts reach that far. Beyond a reach that the config states nothing fails. None for the control,
    which does not draft.
    """
    pairs = [] if captured.is_control else [pair for kind in _COPIES for pair in _pair_depths(captured, kind)]
    for pair in pairs:
        fraction = _failing_fraction(captured, pair.deep)
        if fraction is not None and pair.deep.rate <= fraction * pair.shallow.rate and pair.p_value <= captured.alpha / len(pairs):
            return _fail_drafts(captured, pair)
    return None


def _pair_depths(captured: Captured, kind: Kind) -> list[_DepthPair]:
    """Return the shallowest depth paired with each deeper one.

    ``kind`` is one of copied text. Depths with too few steps on it are left out. Empty if the shallowest of the rest accepts nothing.
    """
    depths = [acceptance for acceptance in _measure_acceptance(captured, kind) if len(acceptance.windows) >= _LEAST_STEPS]
    if not depths or not depths[0].accepted_tokens:
        return []
    return [_DepthPair(shallow=depths[0], deep=deep) for deep in depths[1:]]


def _failing_fraction(captured: Captured, deep: DepthAcceptance) -> float | None:
    """Return the failing fraction of the shallowest depth's acceptance.

    The deeper depth ``deep`` fails if it accepts that fraction of it or less. None if ``deep`` cannot fail.
    """
    reach = captured.pair.variant.draft.context  # tokens of context up to which drafts are accepted as at first, by the config
    if not reach:
        return _NEXT_TO_NOTHING
    # Beyond the stated reach drafts may be lost, so that nothing fails.
    return _HALF if deep.prompt_tokens < reach else None


def _fail_drafts(captured: Captured, pair: _DepthPair) -> Verdict:
    """Return FAIL for the lost acceptance at the deeper depth of ``pair``."""
    shallow, dead, p_value = pair.shallow, pair.deep, pair.p_value
    verb = "accepted" if dead.drafted else "made"
    name = f"drafts are no longer {verb} after {dead.prompt_tokens:,} tokens of context"
    return say(
        captured,
        Outcome.FAIL,
        f"{name}: {dead.accepted_tokens} of {dead.offered_tokens} draft tokens, "
        f"{shallow.accepted_tokens} of {shallow.offered_tokens} after {shallow.prompt_tokens:,}, for the same text to copy",
        short=(
            f"shallow      {shallow}",
            f"deep         {dead}",
            f"by chance    p = {p_value:.2g}",
            "if meant     state how far drafts reach: `draft_context` of the variant in the config",
        ),
        evidence=list_acceptance(captured),
        cell=f"acceptance {shallow.rate:.0%} to {dead.rate:.0%}",
        names=name,
        figures={**depth_figures(captured), "p_value": p_value},
    )


def list_acceptance(captured: Captured) -> list[str]:
    """Return a line per kind and depth on the drafts accepted, after one on the model's positions."""
    positions = captured.capabilities.get(BASELINE, Capabilities()).positions
    lines = [f"positions {positions}"] if positions else []
    return lines + [f"{title:<9} {acceptance}" for kind, title in _TITLES.items() for acceptance in _measure_acceptance(captured, kind)]


def depth_figures(captured: Captured) -> dict[str, float]:
    """Return the prompt's tokens by depth, and the acceptance at each depth.

    Acceptance is, for each kind of text with verify steps, the accepted length and the accepted share by draft position.
    """
    figures: dict[str, float] = {}
    for kind in Kind:
        for acceptance in _measure_acceptance(captured, kind):
            depth = acceptance.depth
            figures[f"prompt_tokens_{depth}"] = float(acceptance.prompt_tokens)
            if acceptance.windows:
                figures[f"accepted_length_{depth}_{kind}"] = acceptance.length
                figures |= {f"accepted_{depth}_{kind}_{place}": share for place, share in enumerate(acceptance.positions, 1)}
    return figures


def describe_copies(captured: Captured) -> str:
    """Return a clause on the tokens per step on copied text, by depth.

    Of the two kinds of copied text, the one with such steps at more depths is described.
    """
    by_kind = [[acceptance for acceptance in _measure_acceptance(captured, kind) if acceptance.windows] for kind in _COPIES]
    acceptances = max(by_kind, key=len)
    if not acceptances:
        return "; no step on copied text seen"
    lengths = ", ".join(f"{acceptance.length:.2f} after {acceptance.prompt_tokens:,}" for acceptance in acceptances)
    return f"; tokens a step on copied text: {lengths}"

"""Captured: the input of a judge for one pair and one workload.

A pair is a baseline and a variant of it, which speculates; the control is the baseline booted again. Each of them is an arm. To score
tokens is to ask a server for their log-probabilities, whichever arm emitted them; a config may name a scorer for it. A probe before the
capture finds what an arm supports. Failures are unexplained if they did not recur on a fresh server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain

from pytest_specdec.model.baseline import Gate, Slo
from pytest_specdec.model.pair import BASELINE, CONTROL, SCORER, Pair
from pytest_specdec.model.penalty_window import PenaltyWindow
from pytest_specdec.model.transcript import Position, Score, ScoringRoute, Stream, Transcript
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family, Workload

__all__ = [
    "CHAT_ROUTE",
    "BootBlock",
    "Calibrations",
    "Capabilities",
    "Captured",
    "FeatureSupport",
    "ReportedDraws",
    "UnexplainedFailures",
    "scoring",
]


class FeatureSupport(StrEnum):
    """The response of an arm to a feature."""

    HONOURED = "honoured"
    REFUSED = "refused"
    """Answered with a 4xx."""
    IGNORED = "ignored"
    """Answered with 200 and without effect: the failure."""
    UNKNOWN = "unknown"


CHAT_ROUTE = "chat_route"
"""The feature of an arm whose conversations are sent to another route, as token ids: ignored there, and not listed elsewhere."""
WITHOUT = frozenset({FeatureSupport.REFUSED, FeatureSupport.IGNORED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Probed features of one arm, and how its answers are read."""

    support: Mapping[str, FeatureSupport] = field(default_factory=dict)
    """By feature: ``token_ids``, ``sampled_token_ids`` (above temperature 0),
    ``prompt_logprobs``, ``continuations``, ``json_schema``, ``top_k``, ``top_p``, ``seed`` …"""
    raw_logprobs: bool = True
    """Whether reported log-probabilities are those before temperature and truncation."""
    vocabulary: int = 0
    """Tokens in the vocabulary; 0 where unknown."""
    single_precision: bool = False
    """Whether it computes in float32 with nothing quantised; False if unknown."""
    server: str = ""
    """Engine and model; empty if unknown."""
    scored_with: str = ""
    """The engine's own options under which its tokens can be scored; empty if unknown."""
    context_tokens: int = 0
    """The longest sequence, prompt and answer together, as its endpoints tell it; 0 where they tell none."""
    positions: str = ""
    """How its model gets behind the positions that it was trained on, and a window of its attention, in words; empty if unknown."""
    streams: tuple[Stream, ...] = ()
    """Copy-heavy prompts answered one at a time, for the bursts of their chunks; empty where the server counts its drafts itself."""
    penalty_window: PenaltyWindow = field(default_factory=PenaltyWindow)
    """What its penalties count, as its dialect says; it is not probed: the control's own answers have to agree with it."""

    @property
    def route(self) -> ScoringRoute:
        """The route by which this server scores given tokens.

        Scoring gives the log-probabilities of tokens that another server emitted. Prompt log-probabilities are preferred, since they need
        one request per answer. One-token continuations are used only if the server lacks prompt log-probabilities and honours
        continuations.
        """
        lacks_logprobs = self.support.get("prompt_logprobs") in WITHOUT
        has_continuations = self.support.get("continuations") is FeatureSupport.HONOURED
        return ScoringRoute.CONTINUATIONS if lacks_logprobs and has_continuations else ScoringRoute.PROMPT_LOGPROBS

    @property
    def lacks_ids(self) -> bool:
        """True if the probe got no token ids above temperature 0.

        The engine then gives sampled answers as text alone. Answers without ids are left out of scoring, and are no fault.
        """
        return self.support.get("sampled_token_ids") is FeatureSupport.IGNORED

    @property
    def unscorable(self) -> str:
        """The missing features without which no tokens can be scored.

        Each comes with the server's response to it. Scoring needs token ids, and either prompt log-probabilities or continuations. Empty if
        tokens can be scored, or if the features were not probed.
        """
        support = {feature: self.support.get(feature) for feature in ("token_ids", "prompt_logprobs", "continuations")}
        missing = {feature: state for feature, state in support.items() if state in WITHOUT}
        if "token_ids" not in missing and not {"prompt_logprobs", "continuations"} <= missing.keys():
            return ""
        return ", ".join(f"{feature} {state}" for feature, state in missing.items())


def scoring(capabilities: Mapping[str, Capabilities]) -> Capabilities | None:
    """Return the capabilities of the scoring server, from those by arm.

    They are the scorer's if both it and the baseline were probed, but with the baseline's support for token ids,
    since the scored ids come from the baseline's engine. Otherwise they are the baseline's, or None if the baseline
    was not probed.
    """
    baseline, scorer = capabilities.get(BASELINE), capabilities.get(SCORER)
    if baseline is None or scorer is None:
        return baseline
    id_support = {name: support for name, support in baseline.support.items() if name in {"token_ids", "sampled_token_ids"}}
    return replace(scorer, support={**scorer.support, **id_support})


_SCATTERED = 3
"""Failures without recurrence from which on the arm is at fault; fewer count as failures of the infrastructure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnexplainedFailures:
    """Deaths, hangs and 5xx of one arm in a whole run that did not recur."""

    requests: int
    """Answered or failed, over all workloads and boots of the arm."""
    unexplained: tuple[str, ...] = ()
    """One line per failure, however many requests were in flight."""

    def are_finding(self, others: Iterable[UnexplainedFailures]) -> bool:
        """Return True if these failures are the arm's own fault.

        This needs three or more of them, and none in ``others``, the failures of baseline and control. No request causes such failures
        again, so that fewer may come from the infrastructure, and some on the baseline too are not a fault of speculation.
        """
        return len(self.unexplained) >= _SCATTERED and not any(other.unexplained for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootBlock:
    """A further boot of the variant for timed answers, and the baseline's boots beside it."""

    speculative: Transcript
    baselines: tuple[Transcript, ...]
    """If servers run one after the other, the boots just before and just after it; side by side, the one whose requests alternated
    with its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedDraws:
    """Log-probabilities reported of plain draws, each with its score."""

    answers: tuple[tuple[tuple[float, Position], ...], ...] = ()
    """By answer, and in it by token: the tokens of one answer share a batch, a prompt and so their noise."""

    def __iter__(self) -> Iterator[tuple[float, Position]]:
        """Yield the tokens of all answers, one after the other."""
        return chain.from_iterable(self.answers)

    def __len__(self) -> int:
        """Return the number of tokens of all answers."""
        return sum(map(len, self.answers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrations:
    """Log-probabilities that a run's servers reported in the calibration, as the judges of one pair need them."""

    decode: ReportedDraws = ReportedDraws()
    """Of the baseline, scored by another boot of it where there is one."""
    same_boot: ReportedDraws = ReportedDraws()
    """Of the baseline, scored by the boot that reported them; empty where ``decode`` has all there are."""
    verify: ReportedDraws = ReportedDraws()
    """Of the variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One pair's answers to one workload, with everything known about them."""

    pair: Pair
    workload: Workload
    family: Family
    baseline: Transcript
    control: Transcript | None
    """The baseline booted again; None where the plan has none."""
    speculative: Transcript
    beside: tuple[Transcript, ...] = ()
    """What other arms of the run answered to the workload, if a route refused every request of one of this pair's arms; else empty."""
    further: tuple[BootBlock, ...] = ()
    """Further boots, where speed is measured over several; empty elsewhere."""
    repeatable: bool = False
    """Whether the run can still ask the same again: a count of wrong tokens is then left open sooner."""
    repeats: tuple[Captured, ...] = ()
    """The same requests sent again, each prompt after one more line, if a count of wrong tokens was undecided; empty otherwise."""
    scores: Mapping[str, tuple[Score, ...]] = field(default_factory=dict)
    """Scores under the baseline, by the arm that emitted the tokens: the variant's name, ``control``, ``baseline``."""
    draft_scores: Mapping[str, tuple[Score, ...]] = field(default_factory=dict)
    """Scores under the draft model served alone, by arm; empty where there is none."""
    calibration: ReportedDraws = ReportedDraws()
    """Log-probabilities that the baseline reported of plain draws at temperature 1, over the whole run, each with its score by another
    boot; where no other boot scores, by its own."""
    same_boot_calibration: ReportedDraws = ReportedDraws()
    """Such draws that one boot both reported and scored, so that no noise between boots is in them. Empty if ``calibration`` has all
    draws."""
    verify_calibration: ReportedDraws = ReportedDraws()
    """The same of the variant: what its verify kernel reports. Empty for the control, which does not speculate."""
    scored_by: tuple[str, ...] = (CONTROL,)
    """The arms of the baseline's boot that scored these answers: its own reports and scores show no noise between boots."""
    capabilities: Mapping[str, Capabilities] = field(default_factory=dict)
    """By arm."""
    alpha: float = 1e-3
    """This judgement's share of the run's false-alarm budget."""
    gates: tuple[Gate, ...] = ()
    slo: Slo | None = None
    """Latencies that answers should keep, as the config states them; None where it states none."""
    failures: Mapping[str, UnexplainedFailures] = field(default_factory=dict)
    """By arm, over the whole run; empty where the variant has none."""
    within_one_boot: bool = False
    """Whether baseline and control are one attached server asked twice: how boots vary is then unknown."""
    is_control: bool = False
    """Whether ``speculative`` is really the control: the judge is being judged."""
    on_verdict: Callable[[Verdict], None] | None = field(default=None, compare=False, repr=False)
    """Called with every verdict on it, so that an unchecked one is noticed; None outside pytest."""

    def as_control(self) -> Captured:
        """Return the same with the control in the variant's place.

        If a judge fails the control, which is the baseline booted again, the setup is invalid and the engine is not
        blamed. The first baseline boot stays the baseline. The variant's further boots, and the log-probabilities that it
        reported of plain draws, are dropped: the control has neither. Raises ValueError without a control.
        """
        if self.control is None:
            msg = f"{self.workload.name} of {self.pair.name} has no control"
            raise ValueError(msg)
        repeats = tuple(repeat.as_control() for repeat in self.repeats if repeat.control is not None)
        return replace(
            self,
            speculative=self.control,
            further=(),
            repeats=repeats,
            verify_calibration=ReportedDraws(),
            is_control=True,
            on_verdict=None,  # a verdict on the judge itself, which no test has to check
        )

    @property
    def baseline_boots(self) -> tuple[Transcript, ...]:
        """The baseline's answers, boot by boot, the control's last.

        Only the first boot is returned without a control, or if the control itself is under judgement.
        """
        return (self.baseline,) if self.control is None or self.is_control else (self.baseline, self.control)

    @property
    def one_boot(self) -> bool:
        """True if a single boot of the baseline answered and scored.

        ``scored_by`` has the arms that the scoring boot answered as: both at smoke depth, where one boot is baseline and control. How much
        the log-probabilities of two boots differ is then unknown.
        """
        return {BASELINE, CONTROL} <= set(self.scored_by)

    @property
    def scoring(self) -> Capabilities | None:
        """Capabilities of the scoring server; None if it was not probed."""
        return scoring(self.capabilities)

    @property
    def penalty_window(self) -> PenaltyWindow:
        """The tokens that the baseline's penalties count.

        OpenAI's rule is assumed if the baseline was not probed.
        """
        capabilities = self.capabilities.get(BASELINE)
        return PenaltyWindow() if capabilities is None else capabilities.penalty_window

    @property
    def vocabulary(self) -> int:
        """The size of the vocabulary, the largest of any arm; 0 if unknown."""
        return max((capabilities.vocabulary for capabilities in self.capabilities.values()), default=0)

    @property
    def arm(self) -> str:
        """The arm under judgement: the key of its scores."""
        return self.speculative.arm

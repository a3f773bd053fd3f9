"""Captured: what a judge sees for one pair and one workload."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pytest_specdec.model.baseline import Gate
from pytest_specdec.model.pair import Pair
from pytest_specdec.model.transcript import Position, Score, ScoringRoute, Transcript
from pytest_specdec.model.verdict import Verdict
from pytest_specdec.model.workload import Family, Workload

__all__ = ["Capabilities", "Captured", "FeatureSupport", "UnexplainedFailures"]


class FeatureSupport(StrEnum):
    """What an arm does with a feature."""

    HONOURED = "honoured"
    REFUSED = "refused"
    """Answered with a 4xx."""
    IGNORED = "ignored"
    """Answered with 200 and without effect: the failure."""
    UNKNOWN = "unknown"


WITHOUT = frozenset({FeatureSupport.REFUSED, FeatureSupport.IGNORED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What the capability probe found each arm to do, and how its answers are to be read."""

    support: Mapping[str, FeatureSupport] = field(default_factory=dict)
    """By feature: ``token_ids``, ``prompt_logprobs``, ``continuations``, ``json_schema``, ``top_k``, ``top_p``, ``seed`` …"""
    raw_logprobs: bool = True
    """Whether reported log-probabilities are those before temperature and truncation."""
    vocabulary: int = 0
    """Tokens in the vocabulary; 0 where unknown."""
    single_precision: bool = False
    """Whether it is said to compute in float32 with nothing quantised; where that is not known it is not."""
    scored_with: str = ""
    """How the engine has to be set up so that its tokens can be scored, in its own options; empty where that is not known."""

    @property
    def route(self) -> ScoringRoute:
        """The route to this arm's distribution: prompt log-probabilities, unless they are refused or ignored and continuations serve."""
        without = self.support.get("prompt_logprobs") in WITHOUT
        served = self.support.get("continuations") is FeatureSupport.HONOURED
        return ScoringRoute.CONTINUATIONS if without and served else ScoringRoute.PROMPT_LOGPROBS

    @property
    def unscorable(self) -> str:
        """Why this server's distribution at given tokens cannot be had, in the probe's words; empty where it can, or where nobody knows."""
        told = {feature: self.support.get(feature) for feature in ("token_ids", "prompt_logprobs", "continuations")}
        missing = {feature: support for feature, support in told.items() if support in WITHOUT}
        if "token_ids" not in missing and not {"prompt_logprobs", "continuations"} <= missing.keys():
            return ""
        return ", ".join(f"{feature} {support}" for feature, support in missing.items())


_SCATTERED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnexplainedFailures:
    """Deaths, hangs and 5xx of one arm in a whole run that no request brought about again, and the requests that they befell."""

    requests: int
    """Answered or failed, over all workloads and boots of the arm."""
    unexplained: tuple[str, ...] = ()
    """One line per failure, however many requests were in flight."""

    def are_finding(self, others: Iterable[UnexplainedFailures]) -> bool:
        """Whether there are enough of them to be the arm's own, where ``others`` have none: three. One or two may be anybody's."""
        return len(self.unexplained) >= _SCATTERED and not any(other.unexplained for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One pair's answers to one workload, with everything known about them; nothing in it can start a server."""

    pair: Pair
    workload: Workload
    family: Family
    baseline: Transcript
    control: Transcript | None
    """The baseline booted again; None where the plan has none."""
    speculative: Transcript
    scores: Mapping[str, tuple[Score, ...]] = field(default_factory=dict)
    """Scores under the baseline, by the arm whose tokens they are: the variant's name, ``control``, ``baseline``."""
    draft_scores: Mapping[str, tuple[Score, ...]] = field(default_factory=dict)
    """Scores under the draft model served alone, by arm; empty where there is none."""
    calibration: tuple[tuple[float, Position], ...] = ()
    """What the baseline's boots reported of tokens that they drew from the distribution as it is, all over the run, each beside its
    score."""
    capabilities: Mapping[str, Capabilities] = field(default_factory=dict)
    """By arm."""
    alpha: float = 1e-3
    """This judgement's share of the run's false-alarm budget."""
    gates: tuple[Gate, ...] = ()
    failures: Mapping[str, UnexplainedFailures] = field(default_factory=dict)
    """By arm, over the whole run; empty where the variant has none."""
    is_control: bool = False
    """Whether ``speculative`` is really the control: the judge is being judged."""
    told: Callable[[Verdict], None] | None = field(default=None, compare=False, repr=False)
    """Told of every verdict on it, so that none is lost; None where nobody keeps count."""

    def as_control(self) -> Captured:
        """Return the same with the control in the variant's place, to judge the judge.

        The first baseline boot stays the baseline. Raises ValueError without a control.
        """
        if self.control is None:
            msg = f"{self.workload.name} of {self.pair.name} has no control"
            raise ValueError(msg)
        return replace(self, speculative=self.control, is_control=True, told=None)

    @property
    def vocabulary(self) -> int:
        """Tokens in the vocabulary, by any arm's word; 0 where unknown."""
        return max((known.vocabulary for known in self.capabilities.values()), default=0)

    @property
    def arm(self) -> str:
        """The arm under judgement: the key of its scores."""
        return self.speculative.arm

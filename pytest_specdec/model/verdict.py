"""A verdict: outcome, headline, evidence, what it could have detected, how to replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_specdec.model.promise import Promise
from pytest_specdec.model.workload import Family

__all__ = ["Example", "Finding", "Outcome", "SharedCheck", "Symptom", "Verdict"]


class Outcome(StrEnum):
    """The outcome of a judgement; the plugin turns it into a pytest outcome."""

    PASS = "pass"  # noqa: S105 - an outcome, not a password
    FAIL = "fail"
    NOT_SPECULATING = "not speculating"
    INCONCLUSIVE = "inconclusive"
    SUSPICIOUS = "suspicious"
    """Evidence is high and short of the alarm."""
    NOT_DECIDED = "speed not decided"
    REFUSED = "refused"
    INVALID = "invalid"


class SharedCheck(StrEnum):
    """Checks that every judge makes before its own."""

    SERVER = "the server survives"
    ENDING = "answers end as they should"
    DRAFTING = "the server speculates"


class Finding(StrEnum):
    """Everything that a comparison with a stored run or a gate on noise finds."""

    WORSE = "the drafter got worse"
    MORE = "more draft tokens are accepted than in the stored run"
    SAME = "as much is accepted as in the stored run"
    MAYBE_WORSE = "less is accepted than in the stored run, but not surely by more than the margin"
    MAYBE_MORE = "more is accepted than in the stored run, but not surely by more than the margin"
    BY_LOAD = "not gated on the stored run: drafting depends on load"
    OTHER_REQUESTS = "not compared with the stored run: it answered other requests, or under another load"
    OTHER_SETTING = "not compared with the stored run: it had another"
    FEW = "not compared with the stored run: too few prompts"
    TOO_NOISY = "the verify kernel is noisier than the config allows"
    """No token is called wrong by it: numerics may differ, and a gate of the config limits by how much."""


class Symptom(StrEnum):
    """What is wrong with an example, as a client without this package can see it."""

    TEXT = "another text"
    """Up to the wrong token, the text differs from the baseline's."""
    ANSWER = "another answer"
    """Text, tool calls, finish reason or usage differ from the baseline's."""
    LOGPROBS = "other log-probabilities"
    """Reported log-probabilities differ from the baseline's by more than a limit."""
    DOCUMENT = "an invalid document"
    """The text is not the JSON that was asked for."""
    UNREPEATED = "another answer to the same request"
    """The request has a seed, and its answer changes."""
    UNANSWERED = "no answer"
    """The server dies, hangs or reports an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One answer that shows the fault."""

    symptom: Symptom
    request_id: str
    pass_index: int = 0
    token: int | None = None
    """The index of the wrong token; null if the answer is wrong as a whole."""
    limit_nats: float | None = None
    """The largest lawful difference of two log-probabilities: reported ones, or those of two tokens for one place.

    Null if the judge states none.
    """
    beside: tuple[str, ...] = ()
    """Requests to be in flight together with it, if the judge found the smallest such group."""
    after: str = ""
    """The request to be sent right before it; empty if it needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a judge for one pair and one workload."""

    outcome: Outcome
    family: Family
    pair: str
    workload: str
    headline: str
    """One sentence: what was found, or what was ruled out. It does not repeat pair, family and outcome."""
    short: tuple[str, ...] = ()
    """At most four lines that a person needs first: the shortest divergence, the winning bettor."""
    evidence: tuple[str, ...] = ()
    """The long evidence, line by line."""
    rules_out: str = ""
    """What a pass could have detected, from this run's own figures: the sensitivity line."""
    settle: str = ""
    """For an inconclusive or suspicious verdict: how many more tokens or passes would settle it."""
    reason: str = ""
    """Why nothing was decided, as the clause after "because"; empty where something was."""
    cell: str = ""
    """The few words that stand for it in a table: ``evidence 10^4.2``, ``1.82x [1.74, 1.90]``."""
    names: str = ""
    """The bug it names, empty when it names none."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Numbers for machines, by name; units in the names."""
    promise: Promise | None = None
    """What was measured, and a pass so rules out; null where no report asks for it."""
    finding: Finding | None = None
    """What a comparison with a stored run, or a gate on noise, found; null without one."""
    example: Example | None = None
    """An answer that shows the fault; null if no single answer does."""
    check: SharedCheck | None = None
    """The check that failed, if every judge makes it; null for a check of the family alone."""
    transient: bool = False
    """Whether nothing was decided for a reason outside the engine, so that the same command may come to a verdict."""
    parameters: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What each arm does with each sampling parameter, by arm and parameter: ``honoured``, ``refused``; empty where that is not judged."""

    @property
    def red(self) -> bool:
        """True if the engine is at fault."""
        return self.outcome in {Outcome.FAIL, Outcome.NOT_SPECULATING}

"""A run: what a session captured or replayed, what was judged, and its one machine-readable document.

A pair is a variant, a server with speculation, and the baseline, the same model without it. A judgement is one test of a pair on the
answers to a workload.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from pytest_specdec import __version__
from pytest_specdec.errors import RunError
from pytest_specdec.files import codec
from pytest_specdec.model.baseline import Environment, StoredBaseline
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Finding, Outcome, Verdict
from pytest_specdec.model.workload import Family
from pytest_specdec.report import parameter_table
from pytest_specdec.report.causes import Cause, SharedCause, find_causes, join_causes
from pytest_specdec.report.formats import ReportFormat, When
from pytest_specdec.report.plan_summary import PlanSummary
from pytest_specdec.report.upgrade import Upgrade, UpgradeWord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_specdec.model.workload import JSON

SCHEMA = "pytest-specdec/run/4"
NOT_COUNTED = "not counted: tokens are wrong"
"""Stands for speed and acceptance of a variant with wrong answers: the speed of wrong tokens is no speed."""
_BESIDE_TOKENS = frozenset({Family.SPEED, Family.LOGPROBS, Family.LIVENESS, Family.SEEDS})
"""Families that can fail though every token is right."""
KNOWN = "known"
"""Counts the failures that waivers expect."""
NO_VERDICT = "no verdict"
COUNTED_AS = (*(outcome.value for outcome in Outcome), KNOWN, NO_VERDICT)
"""What judgements are counted as, in the order of the report."""


class PytestOutcome(StrEnum):
    """What pytest made of a test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"
    WAIVED = "xfailed"
    """Failed as a waiver of the config, or a mark of the test, expects."""


_BROKEN = frozenset({PytestOutcome.FAILED, PytestOutcome.WAIVED})


class RunClass(StrEnum):
    """The result of a run in one word. If several hold, the first of these counts, but a worse upgrade counts after infrastructure."""

    FINDING = "finding"
    """The variant breaks a promise or misses a gate. A retry changes nothing."""
    SETUP_INVALID = "setup invalid"
    """The baseline cannot judge, no server can be had this way, or the config is out of date. The author of the config has to act."""
    INFRASTRUCTURE = "infrastructure"
    """A server failed once, or answers are missing. The same command may come to a verdict."""
    UNDECIDED = "undecided"
    """Nothing wrong was found, but not everything required was decided. More answers settle it."""
    CLEAN = "clean"
    """Nothing wrong was found, and everything required was decided."""

    @property
    def exit_code(self) -> int:
        """The exit code under ``--specdec-exit-codes``.

        A finding has pytest's own. Infrastructure has EX_TEMPFAIL of sysexits.h, which invites a retry, and an
        invalid setup EX_CONFIG.
        """
        return {
            RunClass.CLEAN: 0,
            RunClass.FINDING: 1,
            RunClass.INFRASTRUCTURE: 75,
            RunClass.UNDECIDED: 76,
            RunClass.SETUP_INVALID: 78,
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgementResult:
    """One test's word on one pair and workload: a verdict, or the error that stood in its way."""

    nodeid: str
    pair: str
    workload: str
    family: Family
    result: PytestOutcome
    verdict: Verdict | None = None
    error: str = ""
    """Why there is no verdict; empty when there is one, or when the test came to its end without one."""
    is_invalid: bool = False
    """Whether there is no verdict because the baseline cannot judge."""
    replay: str = ""
    """The command that judges the same answers again."""
    waiver: str = ""
    """The known bug, owner and last day of the waiver that spoke of this judgement, or the xfail mark's reason; empty without one."""

    @property
    def judged(self) -> bool:
        """True if it says anything about the engine.

        Inconclusive, suspicious, refused and invalid verdicts do not; an undecided speed does. Without a verdict, a passed or failed test
        does, by its own asserts.
        """
        if self.verdict is None:
            return self.result in {PytestOutcome.PASSED, PytestOutcome.FAILED}
        return self.verdict.outcome not in {Outcome.INCONCLUSIVE, Outcome.SUSPICIOUS, Outcome.REFUSED, Outcome.INVALID}

    @property
    def has_fault(self) -> bool:
        """True if the test failed by a fault of the engine.

        Failures by a missing decision, or by a waiver that is no longer needed, are no faults. Without a verdict a test has one if it
        failed by a check of its own; one that failed by another exception has the result ERROR.
        """
        return self.result is PytestOutcome.FAILED and (self.verdict is None or self.verdict.red)

    @property
    def misses_noise_gate(self) -> bool:
        """True if only the noise of the verify kernel is at fault.

        The kernel is noisier than the config allows; no answer is called wrong.
        """
        return self.verdict is not None and self.verdict.finding is Finding.TOO_NOISY

    @property
    def calls_tokens_wrong(self) -> bool:
        """True if the verdict says that tokens are not the baseline's.

        True also for a failure that a waiver expects; False in a lossy mode, whose wrong tokens are only reported, for a missed gate on
        noise, and for families that can fail with right tokens.
        """
        if self.family in _BESIDE_TOKENS or self.verdict is None or self.verdict.outcome is not Outcome.FAIL:
            return False
        if self.misses_noise_gate:
            return False
        return self.result in {PytestOutcome.FAILED, PytestOutcome.WAIVED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedAnswers:
    """The timings of one arm's answers to a timed workload."""

    arm: str
    workload: str
    tokens: tuple[int, ...]
    """Of each answer, as the server counted them."""
    latencies_s: tuple[float, ...]
    """Of each answer, from sending to the last byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What to type next, as command lines."""

    replay: str
    """Judges the stored answers again, without a server."""
    resume: str
    """Captures what is missing."""
    continued: str
    """Captures more of what was inconclusive; empty for a group of a matrix, which is not continued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that the reports show."""

    directory: str
    """As a person would type it."""
    replayed: bool
    plan: PlanSummary
    environment: Environment | None
    status: Status | None
    judgements: tuple[JudgementResult, ...]
    capabilities: dict[str, Capabilities]
    """By arm."""
    notes: tuple[str, ...] = ()
    """Sentences about the whole run: figures of other machines, a missing baseline file, warnings of the pair lint."""
    baselines: tuple[StoredBaseline, ...] | None = None
    """This machine's baseline file, or those of other machines if it has none; None if an older release wrote the run."""
    made_at: str = ""
    """UTC, ISO 8601."""
    commands: Commands
    timings: tuple[TimedAnswers, ...] = ()
    """Read only where the session saves benchmarks."""
    verbose: bool = False
    """Whether the terminal shows what it else counts."""
    upgrade: Upgrade | None = None
    """None where the run is compared with no other."""

    @property
    def is_worse(self) -> bool:
        """True if it is worse than the earlier run that it is compared with."""
        return self.upgrade is not None and self.upgrade.word is UpgradeWord.WORSE

    @property
    def red(self) -> bool:
        """True if a test failed, nothing was judged, or an earlier run was better.

        The run then fails. So it does if a test had an error, or if all judgements of a variant were refused.
        """
        failed = any(j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR} for j in self.judgements)
        return failed or not self.judged or bool(self.refusing) or self.is_worse

    @property
    def run_class(self) -> RunClass:
        """The class of the run: the first of these that holds.

        A finding (a fault of the engine); an invalid setup, for the config's author to settle; infrastructure, such as a dead server, which
        another try may settle; a finding too, if the run is worse than the earlier one; undecided; clean.
        """
        if self.causes:
            return RunClass.FINDING
        red = [j for j in self.judgements if j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR}]
        if any(map(_is_setup_invalid, red)) or self.refusing or (self.status is not None and self.status.lasting):
            return RunClass.SETUP_INVALID
        if any(map(_is_infrastructure, red)) or self.status is None or self.status.error or self.status.state is not State.COMPLETE:
            return RunClass.INFRASTRUCTURE
        if self.is_worse:
            return RunClass.FINDING
        is_open = self.upgrade is not None and self.upgrade.word is UpgradeWord.UNKNOWN
        return RunClass.UNDECIDED if red or self.suspicious or not self.judged or is_open else RunClass.CLEAN

    @property
    def judged(self) -> bool:
        """Whether anything could be judged at all."""
        return any(j.judged for j in self.judgements)

    @property
    def refusing(self) -> tuple[str, ...]:
        """The variants with refused judgements only."""
        return tuple(pair for pair in self.pairs if all(_is_refused(j) for j in self.judgements if j.pair == pair))

    @property
    def suspicious(self) -> tuple[Verdict, ...]:
        """The verdicts with high evidence, short of the alarm."""
        return tuple(j.verdict for j in self.judgements if j.verdict and j.verdict.outcome is Outcome.SUSPICIOUS)

    @property
    def families(self) -> tuple[Family, ...]:
        """The families judged, sorted by name.

        Tests that run in several processes come in any order.
        """
        return tuple(sorted({j.family for j in self.judgements}, key=lambda family: family.value))

    @property
    def pairs(self) -> tuple[str, ...]:
        """The pairs judged, in the order of the plan."""
        names = {j.pair for j in self.judgements}
        return tuple(pair.name for pair in self.plan.pairs if pair.name in names)

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The pairs with wrong tokens, in the plan's order: their speed and acceptance do not count."""
        wrong = {j.pair for j in self.judgements if j.calls_tokens_wrong}
        return tuple(pair for pair in self.pairs if pair in wrong)

    @property
    def causes(self) -> dict[str, tuple[Cause, ...]]:
        """The causes of failures by a fault, by pair: one fault each, with the failures it explains."""
        failures = {pair: [j for j in self.judgements if j.pair == pair and j.has_fault] for pair in self.pairs}
        return {pair: find_causes(failed, self.plan.rows) for pair, failed in failures.items() if failed}

    @property
    def pointers(self) -> dict[str, str]:
        """The pointer of each follower, by test id.

        A follower is a failure with another failure's cause, and its pointer the line that names that leading failure. A test that leads
        a cause has no pointer, even if it follows another one too.
        """
        causes = [cause for of_pair in self.causes.values() for cause in of_pair]
        leading = {cause.leader.nodeid for cause in causes}
        followers = ((follower.nodeid, cause.pointer) for cause in causes for follower in cause.followers)
        return {nodeid: pointer for nodeid, pointer in followers if nodeid not in leading}

    @property
    def undecided(self) -> tuple[JudgementResult, ...]:
        """The judgements that failed without a fault: not made, invalid or not decided."""
        failed = (j for j in self.judgements if j.result in {PytestOutcome.FAILED, PytestOutcome.ERROR})
        return tuple(j for j in failed if not j.has_fault)

    @property
    def findings(self) -> tuple[SharedCause, ...]:
        """The causes that reports call findings, each with the variants that have it."""
        return join_causes(self.causes)

    @property
    def unclean(self) -> dict[str, str]:
        """The reasons against storing a variant's figures in a baseline file.

        By variant, without clean ones. A reason is a failure on correctness, waived or not, or that neither greedy nor sampling was judged.
        A lossy mode is clean in spite of failures that its config has only reported.
        """
        reasons = {pair: _reason_against_baseline([j for j in self.judgements if j.pair == pair]) for pair in self.pairs}
        return {pair: why for pair, why in reasons.items() if why}

    def of(self, pair: str, family: Family) -> tuple[JudgementResult, ...]:
        """Return the judgements of one pair in one family."""
        return tuple(j for j in self.judgements if j.pair == pair and j.family is family)


def _is_setup_invalid(judgement: JudgementResult) -> bool:
    """Return True if a failed judgement is for the config's author to settle.

    The baseline cannot judge, a waiver is no longer needed (the verdict is a pass), or a required feature is refused.
    """
    verdict = judgement.verdict
    if verdict is None:
        return judgement.is_invalid
    if verdict.outcome in {Outcome.PASS, Outcome.REFUSED}:
        return True
    return verdict.outcome is Outcome.INVALID and not verdict.transient


def _is_infrastructure(judgement: JudgementResult) -> bool:
    """Return True if a failed judgement may succeed in another try.

    Its verdict is missing by an error, or was prevented by something outside the engine.
    """
    verdict = judgement.verdict
    if verdict is None:
        return judgement.result is PytestOutcome.ERROR
    return verdict.transient


def _reason_against_baseline(judgements: Iterable[JudgementResult]) -> str:
    """Return why a variant's figures may not become a stored baseline.

    ``judgements`` are those of the variant. A reason is a correctness test that failed by a fault, by a suspicion or without a verdict,
    waived or not; or that neither greedy nor sampling was judged. Empty if they may be stored.
    """
    results = [j for j in judgements if j.family is not Family.SPEED]
    broken = [j for j in results if j.result in _BROKEN and (j.verdict is None or j.verdict.red or j.verdict.outcome is Outcome.SUSPICIOUS)]
    if broken:
        return f"it is not clean: {', '.join(dict.fromkeys(j.family.value for j in broken))} failed"
    if not any(j.judged and j.family in {Family.GREEDY, Family.SAMPLING} for j in results):
        return "whether its tokens are right was not judged: run suites/greedy or suites/sampling with it"
    return ""


def _is_refused(judgement: JudgementResult) -> bool:
    return judgement.verdict is not None and judgement.verdict.outcome is Outcome.REFUSED


def count_outcomes(judgements: Iterable[JudgementResult]) -> dict[str, int]:
    """Return the number of judgements by outcome, in the report's order.

    The names are those of :data:`COUNTED_AS`; outcomes without a judgement are left out.
    """
    names = [_outcome_name(j) for j in judgements]
    return {name: names.count(name) for name in COUNTED_AS if name in names}


def _outcome_name(judgement: JudgementResult) -> str:
    """Return the name of :data:`COUNTED_AS` for one judgement."""
    if judgement.verdict is None:
        return NO_VERDICT
    return KNOWN if judgement.result is PytestOutcome.WAIVED else judgement.verdict.outcome.value


def document(run: Run) -> JSON:
    """Return the run as JSON, as ``files/schemas/run.schema.json`` describes it."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "made_at": run.made_at,
        "directory": run.directory,
        "replayed": run.replayed,
        "class": run.run_class.value,
        "red": run.red,
        "upgrade": codec.encode(run.upgrade),
        "judged": run.judged,
        "counts": count_outcomes(run.judgements),
        "plan": codec.encode(run.plan),
        "environment": codec.encode(run.environment),
        "baselines": codec.encode(run.baselines),
        "status": codec.encode(run.status),
        "capabilities": {arm: _capabilities_summary(capabilities) for arm, capabilities in run.capabilities.items()},
        "parameters": codec.encode(parameter_table.effects(run)),
        "not_counted": list(run.not_counted),
        "findings": [_finding_summary(finding) for finding in run.findings],
        "notes": list(run.notes),
        "commands": codec.encode(run.commands),
        "judgements": [codec.encode(judgement) for judgement in run.judgements],
    }


def _finding_summary(finding: SharedCause) -> JSON:
    """Return one finding as run.json holds it, with failed test ids."""
    by_pair: dict[str, JSON] = {pair: [failure.nodeid for failure in cause.failures] for pair, cause in finding.by_pair.items()}
    return {"name": finding.name, "family": str(finding.leader.family), "tests": by_pair}


def _capabilities_summary(capabilities: Capabilities) -> JSON:
    """Return the capabilities without the streams.

    The streams are in the run directory; the verdicts show what follows from them.
    """
    return {field.name: codec.encode(getattr(capabilities, field.name)) for field in fields(capabilities) if field.name != "streams"}


def read(text: str, where: str) -> Run:
    """Return the run stored as ``text`` by :func:`render`, without its timings.

    The streams of capability probes are not stored either. Raises RunError, with ``where`` as the place, if ``text`` is no such document
    or another release's.
    """
    return decode(load(text, where), where)


def load(text: str, where: str) -> dict[str, JSON]:
    """Return the JSON document in ``text``, with its schema checked only. Raises RunError as :func:`read` does."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        what, remedy = "the file is not JSON", "restore the file that the session wrote, or replay the run"
        raise RunError(what, where=where, found=str(error), expected="run.json as a session wrote it", remedy=remedy) from None
    content = data if isinstance(data, dict) else {}
    codec.check_schema(where, content.get("schema"), SCHEMA)
    return content


def decode(data: Mapping[str, JSON], where: str) -> Run:
    """Return the run in a document of :func:`load`. Raises RunError as :func:`read` does."""
    values = {field.name: data[field.name] for field in fields(Run) if field.name in data}
    try:
        return codec.decode(Run, values)
    except RunError as error:
        place = f"{where}  {error.where}".rstrip()
        raise RunError(error.what, where=place, found=error.found, expected=error.expected, remedy=error.remedy) from None


def render(run: Run) -> str:
    """Return the text of ``run.json``."""
    return json.dumps(document(run), ensure_ascii=False, indent=1) + "\n"


FORMAT = ReportFormat(name="json", target="run.json", when=When.FILES, render=render)

"""The contract in pytest: a visit of each live server, kept and broken in words, and the outcome as data.

``pytest suites/contract --specdec-config=NAME`` runs it, ``python -m pytest_specdec doctor NAME --contract`` for one variant.
"""

from __future__ import annotations

import datetime as dt
import json
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specdec.capture import environment
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import SpecdecError
from pytest_specdec.files.run_directory import atomic_write
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.plugin import live, run_state

from .claims import outcome
from .lifecycle import ReadinessWatch
from .parameters import survey as survey_parameters
from .visit import Visit

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_specdec.capture.server.recipe import ServerRecipe
    from pytest_specdec.model.pair import Pair
    from pytest_specdec.plugin.live import LiveServer

    from .claims import Note

_HERE = Path(__file__).parent
_EVIDENCE, _CLAIM = "evidence", "claim"
"""Properties of a report."""


@dataclass(slots=True)
class _Contract:
    """What came of a session's contract, by arm."""

    watches: dict[str, ReadinessWatch] = field(default_factory=dict)
    arms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each as the document has it."""

    def watch(self, arm: str, recipe: ServerRecipe) -> AbstractContextManager[object]:
        """Watch the readiness of a server while it boots."""
        if recipe.command is None:
            return nullcontext()
        return self.watches.setdefault(arm, ReadinessWatch(recipe))


_CONTRACT = pytest.StashKey[_Contract]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("specdec contract", "the contract of an engine's adapter")
    group.addoption("--contract-json", metavar="FILE", help="write the outcome as data, with the effect of each parameter")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the end of each server after its other tests, wherever they were shuffled to."""
    items.sort(key=lambda item: item.path.parent == _HERE and getattr(item, "originalname", "") == "test_end")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Watch the boots of the live servers, without the settings of ``speed:``."""
    session.config.stash[_CONTRACT] = contract = _Contract()
    live_servers = session.config.stash.get(live.LIVE, None)
    if live_servers is not None:
        live_servers.timed = False
        live_servers.during_boot = contract.watch


@pytest.fixture(scope="session")
def baseline_visit(request: pytest.FixtureRequest, specdec_baseline_server: LiveServer) -> Visit:  # noqa: ARG001 - it boots
    """Return the visit of the baseline's server."""
    return _visit(request.config, None)


@pytest.fixture(scope="session")
def variant_visit(request: pytest.FixtureRequest, specdec_speculative_server: LiveServer, specdec_pair: Pair) -> Visit:  # noqa: ARG001 - it boots
    """Return the visit of a variant's server."""
    return _visit(request.config, specdec_pair)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Return the function that takes the evidence of a claim that is kept."""
    return lambda evidence: request.node.user_properties.append((_EVIDENCE, evidence))


@pytest.fixture
def survey(request: pytest.FixtureRequest, visit: Visit) -> None:
    """Add what a server does with each parameter to the outcome as data.

    Some parameters have ended servers: those of others are asked with ``may_kill`` alone.
    """
    arm = visit.arm
    record = request.config.stash[_CONTRACT].arms[visit.variant or BASELINE]
    if not request.config.getoption("contract_json", None):
        return
    if not visit.variant:
        with suppress(SpecdecError):
            record["program"] = visit.program_version or ""
    if arm.running and (arm.recipe.setup.attached is None or visit.config.may_kill):
        record["survey"] = asdict(survey_parameters(visit))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Describe the outcome of a claim, with secrets masked.

    A server that did not come up ends the session: its error says why.
    """
    report = yield
    visit = getattr(item, "funcargs", {}).get("visit")
    if call.when == "setup" and report.failed:
        item.session.shouldfail = "a server could not be held to the contract"
    if call.when == "call" and visit is not None and isinstance(item, pytest.Function):
        error = call.excinfo.value if call.excinfo else None
        evidence = str(dict(report.user_properties).get(_EVIDENCE, "")) if error is None else str(error)
        if report.failed and not isinstance(error, AssertionError):
            evidence = f"{type(error).__name__}: {evidence}"
        mask, arm = visit.arm.recipe.setup.secrets.mask, visit.variant or BASELINE
        name = item.originalname.removeprefix("test_").replace("_", " ")
        clause = {"name": name, "outcome": outcome(error), "evidence": mask(" ".join(evidence.split()))}
        item.config.stash[_CONTRACT].arms[arm]["clauses"].append(clause)
        report.user_properties.append((_CLAIM, {"arm": arm, **clause}))
        if report.failed:
            text = str(report.longrepr)
            report.longrepr = report.longrepr if mask(text) == text else mask(text)
            report.sections.append(("claimed by", ", ".join(item.obj.members)))
        elif report.skipped:
            report.longrepr = (str(item.path), 1 + (item.location[1] or 0), f"{clause['outcome']}: {clause['evidence']}")
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str | tuple[str, dict[str, bool]]] | None:
    """Return the outcome of a claim in words; None of other tests and of skips, of which pytest shows the reason."""
    claim = dict(report.user_properties).get(_CLAIM)
    if not isinstance(claim, dict) or report.skipped:
        return None
    words = f"{claim['outcome'].upper()} ({claim['evidence']})"
    return (report.outcome, ".", words) if report.passed else (report.outcome, "F", (words, {"red": True}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcome as data, unless a server could not be visited."""
    path = session.config.getoption("contract_json", None)
    contract = session.config.stash.get(_CONTRACT, None)
    if path and contract is not None and contract.arms and not session.shouldfail:
        atomic_write(Path(path), _document(session.config, list(contract.arms.values())))


def _visit(config: pytest.Config, pair: Pair | None) -> Visit:
    """Return the visit of a booted server, and begin its part of the outcome."""
    name, contract = pair.name if pair else BASELINE, config.stash[_CONTRACT]
    arm, settings = config.stash[live.LIVE].arm(name), run_state.get(config).config
    watch = contract.watches.get(name)
    contract.arms[name] = {"arm": name, "version": arm.version, "program": "", "clauses": [], "survey": None}
    return Visit(
        arm,
        settings,
        engine_of(settings.engine.kind),
        draft=pair.variant.draft if pair else None,
        variant=pair.name if pair else "",
        early=watch.early if watch else None,
    )


def _document(config: pytest.Config, arms: list[dict[str, Any]]) -> str:
    """Return the outcome as JSON, with its date and machine."""
    settings = run_state.get(config).config
    version = next((version for arm in arms for version in (arm["program"], arm["version"]) if version), "")
    machine = environment.environment(settings, version)
    record = {
        "config": settings.name,
        "engine": settings.engine.kind,
        "version": version,
        "date": dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%d"),
        "environment": {"system": machine.system, "processor": machine.processor, "cores": machine.cores, "devices": machine.devices},
        "arms": arms,
    }
    return json.dumps(record, indent=1, default=str) + "\n"

"""The marker of a test: which workload is sent and as which family its answers are judged.

A workload is a named list of requests. A family is a kind of judgement: ``greedy`` for answers at temperature 0, ``sampling`` above it, and
others. A depth (smoke, standard, deep) takes more or fewer of the requests.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.model.workload import OWN, Family, Workload
from pytest_specdec.plugin import run_state

if TYPE_CHECKING:
    from collections.abc import Sequence

BASELINE_SERVER, SPECULATIVE_SERVER = "specdec_baseline_server", "specdec_speculative_server"
"""Fixtures of people's own tests against the servers themselves."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_RESERVED = re.compile(r"\.(calibration|more\d+|partial|earlier\d+)$")

FORM = '@pytest.mark.specdec(WORKLOAD, family="greedy")'


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecdecMark:
    """What ``@pytest.mark.specdec`` says."""

    workload: Workload
    family: Family
    whole_run: bool = False
    """Whether the judge is given every answer of the variant, and not those to the workload alone."""


def is_ours(item: pytest.Item) -> bool:
    """Return True if a test judges captured answers.

    Such a test has the mark. One that uses the fixture ``specdec_pair`` without a live server counts too: its mark is missing, which
    :func:`read` reports.
    """
    return item.get_closest_marker("specdec") is not None or ("specdec_pair" in _fixture_names(item) and not live_fixtures(item))


def live_fixtures(item: pytest.Item) -> tuple[str, ...]:
    """Return the live-server fixtures requested by a test."""
    return tuple(name for name in (BASELINE_SERVER, SPECULATIVE_SERVER) if name in _fixture_names(item))


def check_live(item: pytest.Item) -> None:
    """Raise pytest.UsageError if a test with a live server also has the mark.

    Only for tests with a live fixture (:func:`live_fixtures`): such a test sends requests of its own, and one with the
    mark judges captured answers.
    """
    if item.get_closest_marker("specdec") is not None:
        raise _usage_error(
            item, f"found a mark and the fixture {live_fixtures(item)[0]}", "a test of its own, without a mark, for the live server"
        )


def read(item: pytest.Item) -> SpecdecMark:
    """Return the ``specdec`` mark of a test.

    The judge is given all answers of a variant (``whole_run``) if the test uses ``specdec_captured_run``. Raises pytest.UsageError, with
    the test's place, if the mark is missing or invalid, or if its test uses not exactly one of the two fixtures with answers.
    """
    mark = item.get_closest_marker("specdec")
    if mark is None:
        raise _usage_error(item, "found no mark", "the mark that names the workload, on every test with the fixture specdec_pair")
    captured_fixtures = {"specdec_captured", "specdec_captured_run"}.intersection(_fixture_names(item))
    if len(captured_fixtures) != 1:
        raise _usage_error(
            item,
            f"found a mark {'and both fixtures' if captured_fixtures else 'but not the fixture specdec_captured'}",
            "the fixture specdec_captured, in suites/ captured, or specdec_captured_run, in every test with the mark",
        )  # ``captured`` is a fixture of the package's own suites, made of specdec_captured
    _check_arguments(item, mark)
    family, whole_run = _marked_family(item, mark.kwargs.get("family")), "specdec_captured_run" in captured_fixtures
    row = run_state.get(item.config).families[family]  # the package of a family declares by it what the judge takes
    if whole_run and not row.whole_run:
        raise _usage_error(item, f"found specdec_captured_run in a test of {family}", "a family whose row says whole_run=True")
    specdec_mark = SpecdecMark(workload=_marked_workload(item, mark.args), family=family, whole_run=whole_run)
    _check_requests(item, specdec_mark.workload)
    _check_draws(item, specdec_mark)
    return specdec_mark


def pair_name(item: pytest.Item) -> str:
    """Return the name of a test's pair; empty without one."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("specdec_pair", "")) if callspec else ""


def _fixture_names(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def _check_arguments(item: pytest.Item, mark: pytest.Mark) -> None:
    """Raise pytest.UsageError for an unknown or a second positional argument of a mark."""
    unknown = sorted(set(mark.kwargs) - {"family"})
    if unknown or len(mark.args) > 1:
        arguments = f"{unknown[0]}=" if unknown else f"{len(mark.args)} positional arguments"
        raise _usage_error(item, f"found {arguments}", "one workload, and family= by name")


def _marked_workload(item: pytest.Item, args: tuple[object, ...]) -> Workload:
    """Return the workload of a mark; raise pytest.UsageError if it has none."""
    if not args:
        raise _usage_error(item, "found no workload", "a workload, such as prompts.CHAT.greedy()")
    if not isinstance(args[0], Workload):
        raise _usage_error(item, f"found {args[0]!r} ({type(args[0]).__name__})", "a Workload, such as prompts.CHAT.greedy()")
    return args[0]


def _check_requests(item: pytest.Item, workload: Workload) -> None:
    """Check the workload's name, number of requests, depths and request ids.

    Raises pytest.UsageError for a name that cannot be a file's, for a workload without requests or with fewer than 0 at a
    depth, and for request ids that are not unique or begin as those of the config's prompts.
    """
    if not _NAME.fullmatch(workload.name) or _RESERVED.search(workload.name):
        reserved = "the endings .calibration, .more1, .partial and .earlier1 are reserved"
        expected = f"letters, digits and ._+- alone, beginning with a letter or digit; {reserved}"
        raise _usage_error(item, f"found the workload name {workload.name!r}", expected)
    if not workload.requests:
        raise _usage_error(item, f"found a workload without requests: {workload.name}", "one or more; take={depth: 0} leaves a depth out")
    for depth, count in workload.take.items():
        if count < 0:
            raise _usage_error(item, f"found {count} requests to take at {depth} depth", "0 or more; 0 leaves the depth out")
    if workload.own_requests:
        expected = "another beginning: ids of the config's prompts have this one"
        raise _usage_error(item, f"found a request id in {workload.name} that begins with {OWN!r}", expected)
    counts = Counter(request.id for request in workload.requests)
    repeated_id = next((name for name, count in counts.items() if count > 1), None)
    if repeated_id is not None:
        raise _usage_error(item, f"found two requests called {repeated_id!r} in {workload.name}", "an id of its own for each request")


def _check_draws(item: pytest.Item, mark: SpecdecMark) -> None:
    """Check the requests' temperatures against the family of the mark.

    Raises pytest.UsageError if sampled tokens would be judged as greedy, or if nothing is sampled in a workload judged as
    sampling.
    """
    drawing_request = next((request for request in mark.workload.requests if not request.greedy), None)
    if mark.family is Family.GREEDY and drawing_request is not None:
        value = drawing_request.body.get("temperature")
        temperature = "the server's own temperature" if value is None else f"temperature {value}"
        raise _usage_error(
            item, f"found {drawing_request.id} at {temperature}, judged as greedy", "temperature 0 in every request, or family='sampling'"
        )
    if mark.family is Family.SAMPLING and drawing_request is None:
        expected = "a temperature above 0, or family='greedy'"
        raise _usage_error(item, f"found no request in {mark.workload.name} that draws tokens, judged as sampling", expected)


def _marked_family(item: pytest.Item, name: object) -> Family:
    """Return the family called ``name``; raise pytest.UsageError if there is none."""
    names = run_state.get(item.config).families
    if isinstance(name, str) and name in names:
        return Family(name)
    suggestions = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {suggestions[0]!r}?" if suggestions else ""
    raise _usage_error(item, f"found family={name!r}{hint}", f"one of {', '.join(names)}")


def _usage_error(item: pytest.Item, found: str, expected: str) -> pytest.UsageError:
    """Return the error for an invalid mark.

    It has the test's place and the form of the mark.
    """
    where = f"{item.location[0]}:{(item.location[1] or 0) + 1}"
    return pytest.UsageError(f"{where} {item.name}: {found}\n  expected: {expected}\n  remedy:   {FORM}")

"""Live servers: what people's own tests are given, each server booted once, before the clock of the first test that needs it.

An arm is the baseline or a variant of it, which speculates; it has one server. Sessions lock the devices that they use, and the machine:
alone to measure speed, else shared.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.capture import devices, locks, placement, planner
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import LeaseError, PlanError, SpecdecError
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.pair import BASELINE
from pytest_specdec.model.plan import Placement, Role
from pytest_specdec.plugin import marker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from openai import OpenAI

    from pytest_specdec.capture.server.recipe import ServerRecipe
    from pytest_specdec.capture.server.server import ArmServer
    from pytest_specdec.model.plan import Boot, Plan
    from pytest_specdec.plugin.run_state import RunState

_NO_KEY = "none"
"""The openai package wants a key, also where the server asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveServer:
    """A server at work, for a test's own requests."""

    url: str
    """Its address, with ``/v1``."""
    model: str
    """The name that it serves its model under."""
    api_key: str = field(default=_NO_KEY, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request, together with the key."""

    @property
    def client(self) -> OpenAI:
        """A new client of the openai package.

        It never retries a request by itself.
        """
        from openai import OpenAI  # noqa: PLC0415 - only a test that sends pays for it

        return OpenAI(base_url=self.url, api_key=self.api_key, default_headers=dict(self.headers), max_retries=0)


def register(config: pytest.Config, run: RunState, items: Sequence[pytest.Item]) -> None:
    """Register the plugin that boots the servers for ``items``.

    ``items`` are the tests with live servers; a replay boots none and skips them. Raises pytest.UsageError if one of these tests has the
    mark too, and SpecdecError if their servers cannot run here.
    """
    for item in items:
        marker.check_live(item)
    if run.settings.replay is None:
        _check_placement(config, run, items)
    config.stash[LIVE] = LiveServers(config, run)
    config.pluginmanager.register(config.stash[LIVE], "specdec_live")


def _check_placement(config: pytest.Config, run: RunState, items: Sequence[pytest.Item]) -> None:
    """Raise PlanError if the tests' servers cannot run in this session.

    Under xdist each worker would boot servers of its own. A test cannot use two servers if only one runs at a time, as the config or the
    machine may have it (``placement``).
    """
    if hasattr(config, "workerinput"):
        what = "live servers are not shared between workers"
        raise PlanError(
            what,
            where=items[0].nodeid,
            found="a live fixture under pytest-xdist",
            expected="one process, which boots each server once",
            remedy="run these tests without -n, or deselect them",
        )
    with_both_servers = next((item for item in items if len(marker.live_fixtures(item)) > 1), None)
    choice = placement.resolve(run.config, engine_of(run.config.engine.kind))
    if with_both_servers is not None and choice.placement is Placement.IN_TURN:
        what = "a test asks for two live servers, and only one runs at a time"
        raise PlanError(
            what,
            where=with_both_servers.nodeid,
            found=f"placement: {run.config.placement}" + (f" ({choice.reason})" if choice.reason else ""),
            expected="placement: side-by-side, or one of the two fixtures in a test",
            remedy=f"set `placement: side-by-side` in {run.config.path} where two servers fit, or split the test",
        )


class LiveServers:
    """Plugin to boot the live servers of selected tests, and to stop them.

    ``_arms`` has the servers that run, and ``_errors`` why one did not boot, both by arm. ``_plan`` has the boot of each arm; None in a
    replay, which judges stored answers and boots nothing. ``timed`` servers get the config's settings for measuring speed.
    """

    def __init__(self, config: pytest.Config, run: RunState) -> None:
        self.timed = True
        """Whether servers boot under the settings of ``speed:``, if the config has them. The contract's suite sets it to False."""
        self.during_boot: Callable[[str, ServerRecipe], AbstractContextManager[object]] = lambda _arm, _recipe: nullcontext()
        """Entered with arm and recipe while a server boots. The contract's suite sets it, to watch when the server gets ready."""
        self._config = config
        self._run = run
        self._plan: Plan | None = None
        self._arms: dict[str, ArmServer] = {}
        """The servers that run, by arm."""
        self._errors: dict[str, str] = {}
        """By arm, why its server did not boot."""
        self._shown: dict[str, str] = {}
        """By arm, the test that shows this error in full."""
        self._lock_error = ""
        """Why the test at hand did not get the machine or a device in time; empty if it did."""
        self._lock_wait_s = locks.MAX_WAIT_S
        """Seconds that all tests together may yet wait for other sessions."""
        self._held = ExitStack()
        """The devices, from the first boot on."""
        self._holds_devices = False
        if run.settings.replay is None:
            from pytest_specdec.capture import rates  # noqa: PLC0415 - a replay never needs it

            expected = rates.expected_rates(run.config, run.runs_folder)
            self._plan = planner.plan_servers(run.config, expected)
            run.live_pairs = self._plan.pairs  # a live test is given its pair out of these, since the run may have no plan of its own

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Stop the servers when the tests end.

        They are stopped after an error or SIGTERM too.
        """
        from pytest_specdec.plugin.capture import exit_on_sigterm  # noqa: PLC0415 - it imports this module's neighbours

        try:
            with exit_on_sigterm():
                return (yield)
        finally:
            self.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Boot the test's servers before its own clock and timeout run.

        The test holds the lock of the machine, since its requests would change the times of a session that measures speed. Sessions that
        measure none share the lock; a test with the fixture ``benchmark`` holds it alone. A test that gets no lock in time fails in its
        setup (``_lock_error``).
        """
        with ExitStack() as exit_stack:
            self._lock_error = ""
            try:
                for arm in self._needed_arms(item):
                    self._boot_server(arm)
                if self._arms and marker.live_fixtures(item):
                    self._take_lock(exit_stack, locks.exclusive if "benchmark" in getattr(item, "fixturenames", ()) else locks.shared)
            except LeaseError as error:
                self._lock_error = str(error)
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Fail a test whose server did not boot, or that got no lock.

        In a replay it is skipped. Of the tests whose server did not boot the first shows the error in full, and later ones refer to it.
        """
        if not marker.live_fixtures(item):
            return
        if self._run.settings.replay is not None:
            pytest.skip("a replay has no live servers")
        if self._lock_error:
            pytest.fail(self._lock_error, pytrace=False)
        for arm in _requested_arms(item):
            self._fail_without_server(item, arm)

    def _fail_without_server(self, item: pytest.Item, arm: str) -> None:
        """Fail the test if the server of ``arm`` did not boot.

        The first such test shows the error, and later ones name that test.
        """
        if arm not in self._errors:
            return
        first_test = self._shown.setdefault(arm, item.nodeid)
        text = self._errors[arm] if first_test == item.nodeid else f"{arm} did not come up: see {first_test}"
        pytest.fail(text, pytrace=False)

    def arm(self, name: str) -> ArmServer:
        """Return the booted server called ``name``; KeyError if it did not boot."""
        return self._arms[name]

    def server(self, arm: str) -> LiveServer:
        """Return the address, model and key of ``arm``'s server.

        A test sends its own requests with them.
        """
        server = self._arms[arm]
        setup = server.recipe.setup
        return LiveServer(url=f"{setup.url}/v1", model=server.model, api_key=setup.api_key or _NO_KEY, headers=setup.headers)

    def stop(self) -> None:
        """Stop every server, even if stopping one fails, and release the devices."""
        with self._held, ExitStack() as exit_stack:
            for arm in self._arms.values():
                exit_stack.callback(arm.stop, arm.recipe.stop_s)
        self._arms.clear()

    def _needed_arms(self, item: pytest.Item) -> tuple[str, ...]:
        """Return the arms with a server to boot for ``item``.

        They are the arms that it requests, without those whose server runs or has failed to boot. Empty if the test will not run: in a
        replay, under --setup-plan or with a mark ``skip``.
        """
        will_not_run = self._plan is None or self._config.option.setupplan or item.get_closest_marker("skip")
        return () if will_not_run else tuple(arm for arm in _requested_arms(item) if arm not in self._arms and arm not in self._errors)

    def _boot_server(self, arm: str) -> None:
        """Boot the server of ``arm``, or record its error.

        The error fails every test that needs the server. Raises LeaseError if another session holds a lock, which concerns the test at hand
        alone. Other servers are stopped first if only one may run at a time, or if as many run as the plan allows: two at least, since a
        test may use two.
        """
        try:
            if self._placement is Placement.IN_TURN or len(self._arms) >= max(2, self._plan.servers if self._plan else 1):
                self._stop_others(arm)
            self._start_server(arm)
        except LeaseError:
            raise
        except SpecdecError as error:
            self._errors[arm] = str(error)

    @property
    def _placement(self) -> Placement:
        return self._plan.placement if self._plan else Placement.IN_TURN

    def _stop_others(self, arm: str) -> None:
        """Stop the other servers to make room for ``arm``.

        The tests are sorted by pair, so that no later one needs another variant's server. If servers run side by side, the baseline's is
        not stopped, since tests of every variant may use it.
        """
        lasting_arms = {BASELINE} if self._placement is Placement.SIDE_BY_SIDE else set()
        for name in [name for name in self._arms if name not in {arm, *lasting_arms}]:
            self._arms[name].stop(self._arms[name].recipe.stop_s)
            del self._arms[name]

    def _start_server(self, arm: str) -> None:
        """Start the server of ``arm`` and wait until it answers.

        The devices are locked before the first start. While the server boots, no other session may hold the machine to measure speed.
        """
        from pytest_specdec.capture.server_recipes import ServerRecipes  # noqa: PLC0415 - only a process that boots pays for openai

        assert self._plan is not None, "a replay boots nothing"
        boot = self._planned_boot(self._plan, arm)
        recipes = ServerRecipes(config=self._run.config, plan=self._plan, directory=RunDirectory(self._run.root / "live"))
        if not boot.attached:  # an attached server runs already, wherever it is
            self._take_devices()
        server = recipes.server(boot, lambda: None, lambda: math.inf)  # no heartbeat, and no deadline of a capture
        with ExitStack() as exit_stack:
            self._take_lock(exit_stack, locks.shared)
            with self.during_boot(arm, server.recipe):
                server.start()
            self._arms[arm] = server

    def _planned_boot(self, plan: Plan, arm: str) -> Boot:
        """Return the first boot in which ``arm`` answers as baseline or variant, under the settings by ``timed``.

        Boots with other roles, such as for scores, serve other ends.
        """
        role = Role.BASELINE if arm == BASELINE else Role.VARIANT
        boot = next(boot for boot in plan.boots if boot.role is role and boot.arm == arm)
        return replace(boot, timed=self.timed)

    def _take_devices(self) -> None:
        """Check the engine and lock the devices, before the first server is started.

        They stay locked until :meth:`stop`, and later calls do nothing.
        """
        if self._holds_devices:
            return
        engine_of(self._run.config.engine.kind).check(self._run.config)
        with ExitStack() as exit_stack:
            exit_stack.enter_context(devices.restrict(self._run.config.limits.devices))
            self._take_lock(exit_stack, partial(devices.hold, self._run.config))
            self._held = exit_stack.pop_all()  # beyond this block, since nothing failed
        self._holds_devices = True

    def _take_lock(self, exit_stack: ExitStack, lock: Callable[[float, Callable[[], None]], AbstractContextManager[None]]) -> None:
        """Hold ``lock`` until ``exit_stack`` is closed.

        ``lock`` gets the seconds to wait, and a function to call meanwhile; none is needed here. Raises LeaseError once all tests together
        have waited for as long as a session may; a lock that is free is taken even then.
        """
        began_s = time.monotonic()
        try:
            exit_stack.enter_context(lock(self._lock_wait_s, lambda: None))
        finally:
            self._lock_wait_s = max(0.0, self._lock_wait_s - (time.monotonic() - began_s))


def _requested_arms(item: pytest.Item) -> tuple[str, ...]:
    """Return the arms whose servers a test requests by fixtures."""
    names = {marker.BASELINE_SERVER: BASELINE, marker.SPECULATIVE_SERVER: marker.pair_name(item)}
    return tuple(names[fixture] for fixture in marker.live_fixtures(item))


LIVE = pytest.StashKey[LiveServers]()

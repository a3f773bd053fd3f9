"""Everything about pytest-xdist: the controller hands out one run directory and shows what its workers do there.

One worker captures, that is, boots servers and stores their answers; the others wait. A matrix of settings has a run directory per group.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pytest

from pytest_specdec.files import matrix_run
from pytest_specdec.plugin import handover, run_state, summary
from pytest_specdec.plugin.options import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

USAGE_ERROR = "specdec_usage_error"
"""Under this key a worker hands its controller the text of a usage error."""

LOOK_EVERY_S = 0.5


class WorkerNode(Protocol):
    """A worker as its controller sees it."""

    workerinput: dict[str, object]
    workeroutput: dict[str, object]


def register(config: pytest.Config) -> None:
    """Register the controller's plugins, with the run directory for its workers.

    This is done in every session under xdist, since only workers collect tests and know if any are this plugin's.
    """
    root, session = handover.root(config), uuid.uuid4().hex
    config.pluginmanager.register(Controller(config, root, session), "specdec_controller")
    summary.register(config, root, session=session)


def hand_over(config: pytest.Config, usage_error: str) -> bool:
    """Hand a worker's usage error to its controller.

    Only the controller can end the session. Returns False, and does nothing, if this process is no worker.
    """
    output: dict[str, object] | None = getattr(config, "workeroutput", None)
    if output is not None:
        output[USAGE_ERROR] = usage_error
    return output is not None


class Controller:
    """Plugin of the process that starts the workers; they share its run directory and session id."""

    def __init__(self, config: pytest.Config, root: Path, session: str) -> None:
        self._config = config
        self._root = root
        self._usage_error = ""
        """The first one that a worker handed over; empty without one."""
        self._session = session
        self._round = 0
        """In a session that continues a stored run, the number of its new round of requests; 0 until a worker is started."""

    def pytest_configure_node(self, node: WorkerNode) -> None:
        """Give a worker the data of the session's run.

        These are run directory, session id, the command line's arguments and, to continue a run, the round.
        """
        node.workerinput[handover.ROOT] = str(self._root)
        node.workerinput[handover.ARGUMENTS] = run_state.session_arguments(self._config)
        node.workerinput[handover.INVOKED_IN] = str(self._config.invocation_params.dir)
        node.workerinput[handover.SESSION] = self._session
        if self._config.stash[SETTINGS].continued:
            from pytest_specdec.plugin import stored_run  # noqa: PLC0415 - only a run that is taken further pays for it

            # Read once: a worker that began before may have written the round into the plan.
            node.workerinput[handover.ROUND] = self._round = self._round or stored_run.next_round(self._root)

    def pytest_testnodedown(self, node: WorkerNode) -> None:
        """Record the usage error of a finished worker; the first one counts."""
        output = getattr(node, "workeroutput", None) or {}
        self._usage_error = self._usage_error or str(output.get(USAGE_ERROR, ""))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Show the progress of the capture that a worker runs.

        Raises pytest.UsageError afterwards if a worker handed one over.
        """
        with self._show_capture():
            result = yield
        if self._usage_error:
            raise pytest.UsageError(self._usage_error)
        return result

    @contextmanager
    def _show_capture(self) -> Iterator[None]:
        """Show the capture's progress from a thread; a replay has no capture."""
        if self._config.stash[SETTINGS].replay:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._follow_capture, args=(over,), name="specdec-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _follow_capture(self, over: threading.Event) -> None:
        """Wait for a worker's plan, then show its capture.

        Of a matrix it is the capture of one group after another. Returns once ``over`` is set, at the end of the tests.
        """
        from pytest_specdec.plugin import follow  # noqa: PLC0415 - only a capture pays for it

        followed: set[Path] = set()
        is_over = False
        while True:
            # Groups of a resumed matrix that are complete get no plan of this session: they are passed over.
            begun_roots = [root for root in self._run_directories() if root not in followed and follow.is_of(root, self._session)]
            for root in begun_roots:
                follow.follow(self._config, root, over, every_s=LOOK_EVERY_S, session=self._session)
            followed.update(begun_roots)
            if is_over:  # after one more look, for a capture that began and ended since the last
                return
            is_over = over.wait(LOOK_EVERY_S)

    def _run_directories(self) -> list[Path]:
        """Return the run directories that a worker may capture into.

        They are those of a matrix's groups once a worker has written the matrix, else the session's own.
        """
        matrix = matrix_run.read_or_none(self._root)
        return [*matrix_run.directories(self._root, matrix).values()] if matrix else [self._root]

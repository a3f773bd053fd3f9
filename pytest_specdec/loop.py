"""What a process that judges does around its tests: print the plan, capture, then let pytest run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_specdec import mark, place
from pytest_specdec.errors import RunError
from pytest_specdec.progress import Ticker, ended
from pytest_specdec.report import plan

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_specdec.bench import Bench

__all__ = ["Loop", "register"]


def register(config: pytest.Config, found: Bench) -> None:
    """Register the loop, and the summary where this process shows one."""
    config.pluginmanager.register(Loop(config, found), "specdec_loop")
    if not (hasattr(config, "workerinput") or config.option.collectonly or config.option.setupplan):
        from pytest_specdec.summary import Summary  # noqa: PLC0415 - a worker has no summary

        config.pluginmanager.register(Summary(config, found.root, session=found.session, warnings=found.warnings), "specdec_summary")


class Loop:
    """Registered when tests of ours were selected."""

    def __init__(self, config: pytest.Config, found: Bench) -> None:
        self._config = config
        self._bench = found

    def pytest_report_collectionfinish(self) -> list[str]:
        """Print the plan before anything boots."""
        origin = place.shown(self._bench.root, self._config)
        lines = plan.lines(self._bench.plan, origin=origin, replayed=self._bench.settings.replay is not None)
        return [*lines, *(f"  warning: {warning}" for warning in self._bench.warnings)]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Capture before the first test, where no test's clock or timeout runs."""
        if self._is_wanted(session):
            self._capture()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """See that no test of ours keeps its verdict to itself."""
        result = yield
        if mark.is_ours(pyfuncitem):
            from pytest_specdec import judging  # noqa: PLC0415 - only tests of ours pay for it

            judging.check_all_told(pyfuncitem)
        return result

    def _is_wanted(self, session: pytest.Session) -> bool:
        option = session.config.option
        broken = session.testsfailed and not option.continue_on_collection_errors
        return not (broken or option.collectonly or option.setupplan or self._bench.settings.replay)

    def _capture(self) -> None:
        from pytest_specdec.capturing import capture  # noqa: PLC0415 - a replay never captures

        ticker = Ticker(self._config)
        try:
            status = capture(self._bench, ticker, in_worker=hasattr(self._config, "workerinput"))
        except RunError as error:
            from pytest_specdec import xdist  # noqa: PLC0415 - only a session that cannot capture pays for it

            self._bench.refusal = str(error)
            if not xdist.hand_over(self._config, str(error)):
                raise pytest.UsageError(str(error)) from None
            return
        if status is not None:
            ticker.say(ended(status))

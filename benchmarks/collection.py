"""A collection of the packaged suites by a config, with nothing printed and nothing run."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["collect_suites"]

_QUIET = ("--co", "-qq", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def collect_suites(config: Path, *options: str) -> None:
    """Collect the suites by the config file ``config`` and further options of pytest; AssertionError if that fails."""
    with redirect_stdout(StringIO()):
        code = pytest.main(["suites", f"--specdec-config={config}", *options, *_QUIET])
    assert code == pytest.ExitCode.OK, code

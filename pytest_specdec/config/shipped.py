"""The suites, configs and documentation that come with this package: inside it if it is installed, next to it in a checkout."""

from __future__ import annotations

import shlex
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
MODULE = "pytest_specdec.suites"
"""The suites' name for ``pytest --pyargs``, where they are installed."""


def _find_folder(name: str) -> Path:
    """Return the folder ``name`` in the package, or else beside it.

    It is in the package if that is installed, and beside it in a checkout. If there is neither, the path in the package is returned, which
    does not exist.
    """
    return next((folder for folder in (_PACKAGE / name, _PACKAGE.parent / name) if folder.is_dir()), _PACKAGE / name)


SUITES = _find_folder("suites")
CONFIGS = SUITES / "configs"
DOCS = _find_folder("docs")


def arguments(here: Path) -> str:
    """Return the pytest arguments to run the suites from ``here``.

    A copy in ``here`` is preferred. Otherwise they name the package's own suites, by module if it is installed and by
    folder in a checkout.
    """
    if any((here / "suites").rglob("test_*.py")):
        return "suites/"
    return f"--pyargs {MODULE}" if SUITES.parent == _PACKAGE else shlex.quote(str(SUITES))

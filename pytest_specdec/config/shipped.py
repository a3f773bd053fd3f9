"""The suites and configs that come with this package: inside it if it is installed, next to it in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
MODULE = "pytest_specdec.suites"
"""Their name for ``pytest --pyargs``, where they are installed."""
SUITES = next((folder for folder in (_PACKAGE / "suites", _PACKAGE.parent / "suites") if folder.is_dir()), _PACKAGE / "suites")
CONFIGS = SUITES / "configs"


def arguments(here: Path) -> str:
    """Return the pytest arguments to run the suites from ``here``.

    A copy in ``here`` is preferred. Otherwise they name the package's own suites, by module if it is installed and by
    folder in a checkout.
    """
    if any((here / "suites").rglob("test_*.py")):
        return "suites/"
    return f"--pyargs {MODULE}" if SUITES.parent == _PACKAGE else str(SUITES)

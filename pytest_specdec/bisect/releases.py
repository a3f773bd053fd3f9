"""The releases from a good to a bad one: as the command line lists them, or as pip does for a package."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pytest_specdec.config.validate import nearest
from pytest_specdec.errors import SpecdecError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIP_S = 120.0
_LISTED = "Available versions:"
_REMEDY = "list them, from old to new: --releases V1,V2,…"


def select_between(releases: Sequence[str], good: str, bad: str) -> tuple[str, ...]:
    """Return the releases from ``good`` to ``bad``, both included.

    ``releases`` are in order, from old to new. If they lack an end, it is added, ``good`` as the first, ``bad`` as the last:
    lists such as those of ``git rev-list good..bad`` leave one out. Raises SpecdecError if ``bad`` is not after ``good``.
    """
    first = releases.index(good) + 1 if good in releases else 0
    last = releases.index(bad) if bad in releases else len(releases)
    if good == bad or last < first:
        what, expected = "the bad release is not after the good one", "a fault that a newer release has and an older one has not"
        remedy = f"correct --good and --bad, or {_REMEDY}"
        raise SpecdecError(what, where="--good, --bad", found=f"{good}, {bad}", expected=expected, remedy=remedy)
    return (good, *dict.fromkeys(release for release in releases[first:last] if release not in {good, bad}), bad)


def list_releases(package: str, ends: Sequence[str]) -> tuple[str, ...]:
    """Return a package's releases, as far as pip can install them here.

    They are in order, from old to new, without pre-releases. Raises SpecdecError if pip lists none, or if one of
    ``ends``, the good and the bad release, is not among them.
    """
    command = (sys.executable, "-m", "pip", "index", "versions", package, "--disable-pip-version-check")
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, check=False)  # noqa: S603 - a fixed command
        output, errors = ran.stdout, ran.stderr
    except subprocess.TimeoutExpired:
        output, errors = "", f"no answer within {_PIP_S:g} s"
    releases = parse_versions(output)
    if not releases:
        what, expected = f"pip lists no releases of {package}", f"a line {_LISTED!r} of `pip index versions {package}`"
        last_line = next((line for line in reversed(errors.splitlines()) if line), "no such line")
        remedy = f"name the package on the index: --package NAME; or {_REMEDY}"
        raise SpecdecError(what, where="--package", found=last_line, expected=expected, remedy=remedy)
    for end in ends:
        if end not in releases:
            what, hint = f"{package} has no release {end}", nearest(end, releases)
            shown = ", ".join(releases[-12:])
            raise SpecdecError(what, where="--good, --bad", found=end, expected=f"one such as {shown}", remedy=hint or _REMEDY)
    return releases


def parse_versions(output: str) -> tuple[str, ...]:
    """Return the releases in the output of ``pip index versions``.

    They stand in the line after ``_LISTED``, the newest first, and are returned from old to new. Returns () without such a line.
    """
    lines = [line.partition(_LISTED)[2] for line in output.splitlines() if line.startswith(_LISTED)]
    return tuple(reversed([release.strip() for release in lines[0].split(",")])) if lines else ()

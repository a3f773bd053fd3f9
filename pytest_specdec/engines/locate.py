"""The place of an engine's program: an executable, a venv, or the PATH; and its release, read without running it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config

_FIRST_DATE = 10
"""A tag whose first number is this or more is a date or a build, and no release: the engines with images are at 0 and 1."""


def program(config: Config, tool: str, *, default: str | None, remedy: str) -> str:
    """Return the path of the engine's program.

    This is the config's ``executable``, else the program called ``tool`` in its ``venv``, else ``default``, mostly the path of
    ``tool`` on PATH. Raises EngineError, with ``remedy`` in it, if the program is not there or ``default`` is None.
    """
    settings = config.engine
    if settings.executable:
        path = shutil.which(config.resolve(settings.executable))
        return require_program(path, f"engine.executable: {settings.executable}", "an executable file", remedy)
    if settings.venv:
        expected = Path(config.resolve(settings.venv)) / "bin" / tool
        return require_program(shutil.which(str(expected)), f"engine.venv: {settings.venv}", f"an executable {expected}", remedy)
    return require_program(default, f"engine.kind: {settings.kind}", f"`{tool}` on PATH", remedy)


def require_program(path: str | None, where: str, expected: str, remedy: str) -> str:
    """Return ``path``; raise EngineError if it is None."""
    if path is None:
        what = "the engine is not installed"
        raise EngineError(what, where=where, found="no such program", expected=expected, remedy=remedy)
    return path


def release(program_path: str, package: str) -> str:
    """Return the release of ``package`` in a program's environment.

    An example is ``0.32.0+cpu``. It is read from the name of the package's dist-info folder, without running the program.
    Returns an empty string if it is unknown. The folder of packages is called dist-packages by Debian's Python, which the
    images of vLLM and SGLang have.
    """
    path = Path(program_path)
    # A venv's python is a link to another environment's: the package may be in either, the venv's first.
    environments = dict.fromkeys((path.absolute().parent.parent, path.resolve().parent.parent))
    folders = [
        folder for environment in environments for folder in sorted(environment.glob(f"lib/python*/*-packages/{package}-*.dist-info"))
    ]
    return folders[0].name.removeprefix(f"{package}-").removesuffix(".dist-info") if folders else ""


def image_release(image: str) -> str:
    """Return the tag of an image, by custom its release; empty without one.

    A digest after the tag and the port of a registry before the name are no tag. A tag such as ``25.10-py3`` or
    ``20251101`` is a date or the number of a build, says nothing of the release, and gives an empty string.
    """
    name = image.partition("@")[0].rpartition("/")[2]
    tag = name.partition(":")[2]
    # Releases of the engines begin with 0 or 1; a tag without numbers counts as a release too.
    return tag if numbers(tag) < (_FIRST_DATE,) else ""


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version.

    ``0.32.0+cpu`` gives (0, 32, 0), and so does ``v0.32.0``. Any other text gives an empty tuple, which is less than any
    release.
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, match[1].split("."))) if match else ()

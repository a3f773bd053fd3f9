"""Where an engine's program is: an executable, a venv, or the PATH."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from pytest_specdec.config.config import Config

__all__ = ["checkpoint_gib", "model_there", "numbers", "program", "there", "version"]


def program(config: Config, tool: str, *, default: str | None, remedy: str) -> str:
    """Return the path of ``executable``, of ``venv``'s ``tool``, or ``default``. Raises EngineError when it is not there."""
    settings = config.engine
    if settings.executable:
        found = shutil.which(config.resolve(settings.executable))
        return there(found, f"engine.executable: {settings.executable}", "an executable file", remedy)
    if settings.venv:
        wanted = Path(config.resolve(settings.venv)) / "bin" / tool
        return there(shutil.which(str(wanted)), f"engine.venv: {settings.venv}", f"an executable {wanted}", remedy)
    return there(default, f"engine.kind: {settings.kind}", f"`{tool}` on PATH", remedy)


def there(found: str | None, where: str, expected: str, remedy: str) -> str:
    """Return ``found``. Raises EngineError when it is None."""
    if found is None:
        what = "the engine is not installed"
        raise EngineError(what, where=where, found="no such program", expected=expected, remedy=remedy)
    return found


def model_there(config: Config) -> None:
    """Raise EngineError when the model is a path, which no name of a hub is, and nothing is there."""
    model = config.engine.model
    if model.startswith((".", "/", "~")) and not Path(config.resolve(model)).exists():
        raise EngineError(
            what="the model is not there",
            where=f"{config.path}: engine.model",
            found=f"no folder {model}",
            expected="a checkpoint's folder, absolute or relative to the config",
            remedy="mend the path, or make the checkpoint: the config says how where it is one that is made",
        )


def version(program_path: str, package: str) -> tuple[int, ...]:
    """Return the version of ``package`` in the environment that ``program_path`` belongs to, without running it; () where unknown."""
    site = Path(program_path).resolve().parent.parent / "lib"
    for folder in sorted(site.glob(f"python*/site-packages/{package}-*.dist-info")):
        return numbers(folder.name.removeprefix(f"{package}-"))
    return ()


def checkpoint_gib(folder: Path) -> float | None:
    """Return the size of a checkpoint's weights; None where there is no such folder, or no weights in it."""
    sizes = [path.stat().st_size for pattern in ("*.safetensors", "*.bin", "*.gguf") for path in folder.glob(pattern)]
    return sum(sizes) / 1024**3 if sizes else None


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``0.32.0+cpu`` is (0, 32, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(map(int, found[1].split("."))) if found else ()

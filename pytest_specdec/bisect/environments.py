"""Environments of an engine's releases: a folder each, made by a command, and removed for want of space.

They are for ``bisect``, the search for the first release with a fault, which runs the tests at one release after another.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec import engines
from pytest_specdec.bisect import process
from pytest_specdec.config import variables
from pytest_specdec.engines.registry import kinds
from pytest_specdec.errors import ConfigError, EngineError
from pytest_specdec.files import yaml
from pytest_specdec.files.run_directory import safe, writable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config

ENVIRONMENT, VERSION = "SPECDEC_ENVIRONMENT", "SPECDEC_VERSION"
"""The variables that a config refers to the release under test by: its folder, and its name."""
_SCRIPTS = Path(engines.__file__).parent / "environments"
_GIB = 1 << 30
_LOG_LINES = 3
"""Of a command that failed: they stand in the table of releases."""
_COMPLETE = ".complete"
"""Suffix of the file that marks a folder as complete: its command has exited with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environments:
    """The folders of the releases, and the command that makes one."""

    root: Path
    command: tuple[str, ...]
    """With ``{version}`` and ``{folder}``; empty where the config takes the release's name alone, such as an image's tag."""
    start: Path
    """The folder that the command is started in: the config's."""
    most_gib: float
    """Of all folders together; the one in use may take more."""

    def folder(self, release: str) -> Path:
        """Return the folder of a release."""
        return self.root / safe(release)

    def variables(self, release: str) -> Mapping[str, str]:
        """Return the environment variables by which the config refers to the release.

        They are its name and, only if a command makes one, its folder.
        """
        return {VERSION: release, **({ENVIRONMENT: str(self.folder(release))} if self.command else {})}

    def make(self, release: str, log: Path, deadline: float) -> None:
        """Make the environment of a release, unless it is complete.

        It is a folder that ``self.command`` fills; without a command nothing is made. A marker file beside the folder says that the
        command has succeeded; its modification time is the last use. A folder without a marker, as a killed session leaves it, is made
        anew. If the command fails, its folder is removed: the disk limit ``most_gib`` counts only folders with a marker. The command's
        output goes to ``log``. At the end other environments are removed, the least recently used first, until all fit into
        ``most_gib``. ``deadline`` is a time of ``time.monotonic``. Raises EngineError if the command fails or makes no folder,
        DeadlineError if the time is up, and RunError if a file here cannot be written.
        """
        if not self.command:
            return
        folder, marker = self.folder(release), self._marker(release)
        if not (marker.exists() and folder.is_dir()):
            with writable(folder):
                self.root.mkdir(parents=True, exist_ok=True)
                marker.unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
            try:
                self._run_command(release, log, deadline)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        with writable(marker):
            marker.touch()
            self._remove_others(folder)

    def _run_command(self, release: str, log: Path, deadline: float) -> None:
        """Run the command for making a release's environment.

        Its output goes to ``log``. Raises EngineError if it fails or leaves no folder, DeadlineError if the time is up, and
        RunError if the log cannot be written.
        """
        folder = self.folder(release)
        command = [word.replace("{version}", release).replace("{folder}", str(folder)) for word in self.command]
        try:
            code = process.run(command, log, self.variables(release), folder=self.start, deadline=deadline)
            outcome = f"exit code {code}" if code else "exit code 0 and no folder"
        except OSError as error:
            code, outcome = -1, f"{command[0]}: {error.strerror}"
        if code or not folder.is_dir():
            what, text = f"no environment for {release}", "\n".join((outcome, *process.last_lines(log, _LOG_LINES)))
            raise EngineError(what, where=str(log), found=text, expected=f"exit code 0, and the release in {folder}")

    def _marker(self, release: str) -> Path:
        return self.root / f"{safe(release)}{_COMPLETE}"

    def _remove_others(self, used: Path) -> None:
        """Remove environments until the rest fit into ``most_gib``.

        The least recently used go first. The folder ``used`` stays in any case, and its size counts. A complete environment has a
        marker, a file with the folder's name and the suffix ``_COMPLETE``, touched at each use.
        """
        markers = sorted(self.root.glob(f"*{_COMPLETE}"), key=lambda path: path.stat().st_mtime_ns)
        sizes = {marker: _size_gib(marker.with_name(marker.name.removesuffix(_COMPLETE))) for marker in markers}
        for marker in markers:
            folder = marker.with_name(marker.name.removesuffix(_COMPLETE))
            if sum(sizes.values()) > self.most_gib and folder != used:
                marker.unlink()  # before the folder: one that is removed in part must not count as complete
                shutil.rmtree(folder, ignore_errors=True)
                del sizes[marker]


def environment_command(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command to make a release's environment.

    Its words have the placeholders ``{version}`` and ``{folder}``. It is the config's own, with its variables filled in from ``environ``,
    else the script shipped for the engine. Returns () for a config that takes the release's name alone, such as an image's tag. Raises
    ConfigError if the config names two engines, if it does not depend on the release, or if a variable of its command is not set, and
    EngineError if there is no command.
    """
    if config.old is not None:
        what, remedy = "the config names two engines", "write the settings of engines.new under `engine`, in a copy of the config beside it"
        raise ConfigError(what, where=f"{config.path}  engines", found="engines.old and engines.new", expected="one engine", remedy=remedy)
    names = variables.names(yaml.load(config.text, str(config.path)).data)
    if ENVIRONMENT not in names and VERSION not in names:
        what, actual = "the config is the same for every release", f"neither ${{{ENVIRONMENT}}} nor ${{{VERSION}}}"
        expected = f"under engine: `venv: ${{{ENVIRONMENT}}}`, `executable: ${{{ENVIRONMENT}}}/PROGRAM` or `image: NAME:${{{VERSION}}}`"
        remedy = "write it into a copy of the config beside it: other runs of a config with these variables need them set"
        raise ConfigError(what, where=str(config.path), found=actual, expected=expected, remedy=remedy)
    if ENVIRONMENT not in names:
        return ()
    if config.engine.environment:
        return tuple(str(variables.expand(word, environ, ("engine", "environment"))) for word in config.engine.environment)
    script = _SCRIPTS / f"{config.engine.kind}.sh"
    if not script.is_file():
        shipped = ", ".join(kind for kind in kinds() if (_SCRIPTS / f"{kind}.sh").is_file()) or "no engine"
        what, actual = f"no command makes an environment for {config.engine.kind}", f"no engine.environment; shipped for {shipped}"
        remedy = "give the config one: environment: [bash, make-environment.sh, '{version}', '{folder}']"
        raise EngineError(what, where=str(config.path), found=actual, expected="a command", remedy=remedy)
    return ("bash", str(script), "{version}", "{folder}")


def _size_gib(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / _GIB

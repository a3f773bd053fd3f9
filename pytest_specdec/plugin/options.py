"""The options and ini keys, and the frozen settings that they resolve to; nothing else reads an option."""

from __future__ import annotations

import argparse
import os
import re
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_specdec.plugin import matrix_options

if TYPE_CHECKING:
    from collections.abc import Mapping

ENGINES = ("old", "new")
DEPTHS = ("smoke", "standard", "deep")
REPORT_FORMATS = "pytest_specdec.report_formats"
"""The group of entry points by which report formats are found."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_NAMING = ("config", "depth", "only", "shard", "run-dir", "replay", "resume", "continue", "against", "baselines", "cluster")
"""Options whose value is never empty: ``--specdec-config=$UNSET`` has to judge nothing rather than the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options as one session uses them."""

    config: str | None
    """A path or a bare name; None when neither option nor ini key names one."""
    config_given: bool
    """Whether the command line names it."""
    engine: str | None
    """The one of the config's ``engines`` that is judged alone; None for all that the config names."""
    only: str
    """The expression that selects cells of the config's matrix; empty for all of them."""
    shard: tuple[int, int] | None
    """Which part of the cells, from 1, and of how many; None for all of them."""
    run_dir: Path | None
    replay: Path | None
    resume: Path | None
    continued: Path | None
    against: Path | None
    """The earlier run that this one is compared with; None without one."""
    archives: Mapping[Path, Path]
    """Of each run that was unpacked for this session the archive, by the folder that it is in until the session ends."""
    depth: str
    depth_given: bool
    """Whether the command line names it."""
    baselines: Path
    baselines_given: bool
    """Whether the command line names the folder."""
    update_baselines: bool
    accept_regression: str
    """Why the baseline file may be loosened; empty where it may not."""
    reports: tuple[str, ...]
    deadline_s: float | None
    boots: int | None
    """Boots of each variant that speed is measured over; None where the command line does not say."""
    cluster: str
    """The cluster that captures, ``auto`` or an address; empty where this machine does."""
    exit_codes: bool
    """Whether the session exits with the code of the run's class."""
    day: date
    """By which waivers are judged, UTC."""

    @property
    def is_wanted(self) -> bool:
        """True if the command line shows that this plugin is wanted.

        It does so by one of the options config, depth, run directory, replay, resume and continue.
        """
        return self.config_given or self.depth_given or any((self.replay, self.resume, self.continued, self.run_dir))

    @property
    def taken_up(self) -> Path | None:
        """The stored run to resume or continue; None in other sessions."""
        return self.resume or self.continued


SETTINGS = pytest.StashKey[Settings]()


def add(parser: pytest.Parser) -> None:
    """Register the options and ini keys."""
    parser.addini("specdec_config", "default of --specdec-config", default="")
    parser.addini("specdec_depth", "default of --specdec-depth", default="")
    group = parser.getgroup("specdec", "speculative decoding (pytest-specdec)")
    option = group.addoption
    option(
        "--specdec-config",
        metavar="CONFIG",
        help="Engine, model and variants to judge: a YAML file, or the name of one here, in suites/configs or in the package.",
    )
    option("--specdec-depth", metavar="DEPTH", help=f"Number of requests: {', '.join(DEPTHS)} (default: standard).")
    option("--specdec-engine", metavar="NAME", help="Of a config with `engines`, judge this one alone: old or new.")
    matrix_options.add(group)
    option("--specdec-run-dir", metavar="DIR", help="Run directory, new or empty (default: .specdec/<config>-<UTC time>).")
    _add_stored_runs(group)
    option(
        "--specdec-deadline",
        metavar="TIME",
        type=_parse_duration,
        help="End the capture after this time and judge what is complete: seconds, or a duration such as 90s or 1h30m (default: none).",
    )
    option(
        "--specdec-boots",
        metavar="N",
        type=int,
        help="Measure speed over N boots of each variant, each between boots of the baseline; all else is asked of the first (default: 1).",
    )
    option(
        "--specdec-report",
        metavar="FORMATS",
        default="md,html",
        help="Report files besides run.json, comma-separated: md, html, junit, or a format of another package (default: md,html).",
    )
    _add_baselines(group)
    option(
        "--specdec-exit-codes",
        action="store_true",
        help="Exit 1 for a finding only, 75 for infrastructure, which a retry may settle, 76 if undecided, 78 for an invalid setup.",
    )
    option(
        "--specdec-date",
        metavar="DAY",
        type=_parse_day,
        help="Day by which waivers and accepted changes expire, such as 2027-01-31 (default: today, UTC).",
    )


def _add_stored_runs(group: pytest.OptionGroup) -> None:
    """Register the options that name a stored run."""
    option = group.addoption
    option(
        "--specdec-replay",
        metavar="RUN",
        help="Judge a stored run, its archive, or that of a repro folder, again without a server, with its depth, false-alarm shares and "
        "config; --specdec-config overrides the config. Writes reports only into --specdec-run-dir; the run stays unchanged.",
    )
    option(
        "--specdec-resume",
        metavar="RUN",
        help="Resume a run: reuse complete results, capture what is missing or ended in an unexplained server failure. Requires the same "
        "config, selection and machine.",
    )
    option(
        "--specdec-continue",
        metavar="RUN",
        help="Continue a run with inconclusive or suspicious sampling verdicts: capture the same number of requests again and judge "
        "all of them without raising the false-alarm rate. Requires the same config, selection and machine.",
    )
    option(
        "--specdec-against",
        metavar="RUN",
        help="Compare with an earlier run, or its archive, such as one of the engine release in use: whether the baseline's own answers "
        "changed, and what is new of speculation. Fails also if the baseline's answers changed by more than numerics. For a matrix, the "
        "run of a matrix: groups are compared by their cells.",
    )


def _add_baselines(group: pytest.OptionGroup) -> None:
    """Register the options on baseline files."""
    option = group.addoption
    option(
        "--specdec-baselines",
        metavar="DIR",
        help="Directory of baseline files, <config>/<machine>.yaml (default: baselines/ in the rootdir; a replay uses its own).",
    )
    option(
        "--specdec-update-baselines",
        action="count",
        default=0,
        help="Add the speed and the acceptance of this run to the baseline file of this machine and update its gates, which "
        "follow the last ten runs up and down. Nothing is added of a variant with wrong answers. Under CI, give the option twice.",
    )
    option(
        "--specdec-accept-regression",
        metavar="WHY",
        help="With --specdec-update-baselines: also take what failed in this run, and begin anew. The reason is kept in the file.",
    )


def _parse_day(text: str) -> date:
    """Return the day in ``text``; raise argparse.ArgumentTypeError without one."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        msg = f"expected a day such as 2027-01-31; found {text!r}"
        raise argparse.ArgumentTypeError(msg) from None


def _parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``90`` (seconds), ``10m`` or ``1h30m``.

    Raises argparse.ArgumentTypeError for any other text, and for a duration of 0.
    """
    amounts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text if text[-1:] in "hms" else f"{text}s")
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in amounts)
    # the amounts have to be all of the text, but for the last "s", which may be left out
    if not seconds or "".join(count + unit for count, unit in amounts).removesuffix("s") != text.removesuffix("s"):
        msg = f"expected seconds, or a duration such as 90s, 10m or 1h30m; found {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return seconds


def resolve(config: pytest.Config) -> Settings:
    """Return the settings of a session.

    The command line overrides the ini key, and that overrides the default. A stored run named by its archive is unpacked for the session.
    Raises pytest.UsageError for an invalid value and for options that exclude each other.
    """
    _refuse_empty_values(config)  # first: an empty path would be taken for the current folder
    config_name, depth = config.getoption("--specdec-config"), config.getoption("--specdec-depth")
    archives: dict[Path, Path] = {}  # filled in place by the functions that unpack a stored run: the archive, by the folder of the run
    run_dir, replay = _path_option(config, "--specdec-run-dir"), _replayed_run(config, archives)
    _check_run_dir(config, run_dir)
    resume, continued = _path_option(config, "--specdec-resume"), _path_option(config, "--specdec-continue")
    others = {"--specdec-replay": replay, "--specdec-run-dir": run_dir}
    _check_extended_run("--specdec-resume", resume, others)
    _check_extended_run("--specdec-continue", continued, {**others, "--specdec-resume": resume})
    matrix_options.check_continued(continued)  # the run of a matrix can be resumed, but not continued
    against = _stored_run(config, "--specdec-against", archives)
    _check_against(against, replay or resume or continued)  # a run is not compared with itself
    return Settings(
        config=config_name or config.getini("specdec_config") or None,
        config_given=config_name is not None,
        engine=_engine_name(config.getoption("--specdec-engine"), replay),
        only=config.getoption("--specdec-only") or "",
        shard=matrix_options.shard(config.getoption("--specdec-shard"), os.environ),
        run_dir=run_dir,
        replay=replay,
        resume=resume,
        continued=continued,
        against=against,
        archives=archives,
        depth=_require_choice(
            DEPTHS, depth or config.getini("specdec_depth") or "standard", "--specdec-depth" if depth else "ini key specdec_depth"
        ),
        depth_given=depth is not None,
        baselines=_path_option(config, "--specdec-baselines") or config.rootpath / "baselines",
        baselines_given=config.getoption("--specdec-baselines") is not None,
        update_baselines=_updates_baselines(config.getoption("--specdec-update-baselines"), replay),
        accept_regression=_accepted_reason(config.getoption("--specdec-accept-regression"), config.getoption("--specdec-update-baselines")),
        reports=_report_formats(config.getoption("--specdec-report")),
        deadline_s=config.getoption("--specdec-deadline"),
        boots=_boot_count(config.getoption("--specdec-boots"), replay),
        cluster=matrix_options.cluster(config.getoption("--specdec-cluster"), replay, against),
        exit_codes=config.getoption("--specdec-exit-codes"),
        day=config.getoption("--specdec-date") or datetime.now(tz=UTC).date(),
    )


def _refuse_empty_values(config: pytest.Config) -> None:
    """Raise pytest.UsageError for an option of ``_NAMING`` (paths, names and the like) with an empty value.

    An unset shell variable gives such a value; the default would then judge something else than was meant.
    """
    for name in _NAMING:
        if config.getoption(f"--specdec-{name}") == "":
            msg = f"--specdec-{name}: found an empty value; expected a value, or no such option; is an environment variable unset?"
            raise pytest.UsageError(msg)


def _path_option(config: pytest.Config, option: str) -> Path | None:
    value = config.getoption(option)
    return None if value is None else config.invocation_params.dir / Path(value).expanduser()


def _stored_run(config: pytest.Config, option: str, archives: dict[Path, Path]) -> Path | None:
    """Return the folder of an option's stored run, archives unpacked.

    An archive is unpacked until the session ends; ``archives`` then maps that folder to the archive. None if the option is not given.
    Raises pytest.UsageError for an archive that holds no run or cannot be read.
    """
    path = _path_option(config, option)
    if path is None:
        return None
    from pytest_specdec.errors import RunError  # noqa: PLC0415 - only a session with a stored run pays for it
    from pytest_specdec.files import archive  # noqa: PLC0415 - the same

    until_end = ExitStack()
    config.add_cleanup(until_end.close)
    try:
        folder = until_end.enter_context(archive.unpack(path))
    except RunError as error:
        msg = f"{option}: {error}"
        raise pytest.UsageError(msg) from None
    except OSError as error:
        msg = f"{option}: cannot read {path}: {error.strerror}"
        raise pytest.UsageError(msg) from None
    if folder != path:
        archives[folder] = path
    return folder


def _replayed_run(config: pytest.Config, archives: dict[Path, Path]) -> Path | None:
    """Return the run directory to replay; None if none is named.

    In a repro, a folder that reproduces one wrong answer, the run is a subfolder. ``archives`` gets an unpacked archive by its new folder.
    Raises pytest.UsageError if there is no run, or if it cannot be read.
    """
    folder = _stored_run(config, "--specdec-replay", archives)
    if folder is None or _holds_run(folder, named_by="--specdec-replay"):
        return folder
    from pytest_specdec.files.run_directory import REPRO_RUN  # noqa: PLC0415 - only a replay of a repro pays for it

    run = folder / REPRO_RUN
    if not (run / "plan.json").is_file():
        msg = (
            f"--specdec-replay: found no plan.json in {folder}, nor in its folder {REPRO_RUN}/; "
            "expected a directory that a capture wrote, such as one under .specdec/, or a folder of `python -m pytest_specdec repro`"
        )
        raise pytest.UsageError(msg)
    return run


def _report_formats(text: str) -> tuple[str, ...]:
    """Return the names of the report formats; raise pytest.UsageError for an unknown one."""
    names = tuple(name for name in text.split(",") if name)
    if {"md", "html"}.issuperset(names):
        return names
    from importlib import metadata  # noqa: PLC0415 - only a report of one's own pays for it

    choices = tuple(sorted({point.name for point in metadata.entry_points(group=REPORT_FORMATS)}))
    return tuple(_require_choice(choices, name, "--specdec-report") for name in names)


def _require_choice(choices: tuple[str, ...], value: str, where: str) -> str:
    """Return ``value``; raise pytest.UsageError unless it is one of ``choices``."""
    if value in choices:
        return value
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong value pays for it

    suggestions = get_close_matches(value, choices, n=1)
    hint = f"; did you mean {suggestions[0]!r}?" if suggestions else ""
    msg = f"{where}: expected one of {', '.join(choices)}, found {value!r}{hint}"
    raise pytest.UsageError(msg)


def _check_run_dir(config: pytest.Config, run_dir: Path | None) -> None:
    """Raise pytest.UsageError unless the run directory is new or empty.

    A worker does not check this: its controller has done so, and another worker may already capture there.
    """
    if run_dir is None or hasattr(config, "workerinput"):
        return
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        msg = f"--specdec-run-dir: found {run_dir} in use; expected a new or empty directory; to judge that run again: --specdec-replay"
        raise pytest.UsageError(msg)


def _check_extended_run(option: str, run: Path | None, others: dict[str, Path | None]) -> None:
    """Raise pytest.UsageError if the run to resume or continue is no stored run.

    ``run`` is the value of ``option``. ``others`` are the values of options that name another run directory: none of these may be given
    too. Without ``run`` nothing is checked.
    """
    _check_stored_run(option, run)
    for name, other in others.items():
        if run is not None and other is not None:
            msg = f"{option} cannot be combined with {name}: the run continues in its own directory"
            raise pytest.UsageError(msg)


def _check_stored_run(option: str, run: Path | None) -> None:
    """Raise pytest.UsageError if ``run`` is no stored run, or cannot be read."""
    if run is not None and not _holds_run(run, named_by=option):
        actual = f"no plan.json in {run}" if run.is_dir() else f"the file {run}" if run.is_file() else f"no directory {run}"
        msg = f"{option}: found {actual}; expected a directory that a capture wrote, such as one under .specdec/"
        raise pytest.UsageError(msg)


def _check_against(earlier: Path | None, run: Path | None) -> None:
    """Raise pytest.UsageError unless ``earlier`` is another stored run than ``run``.

    ``run`` is the stored run that is judged itself; None of either is no error.
    """
    _check_stored_run("--specdec-against", earlier)
    if earlier is not None and run is not None and earlier.resolve() == run.resolve():
        msg = f"--specdec-against: found {run}, the run that is judged itself; expected the run of the build before the upgrade"
        raise pytest.UsageError(msg)


def _holds_run(folder: Path, *, named_by: str) -> bool:
    """Return True if a folder holds a run, or a matrix's; raise pytest.UsageError, with the option ``named_by``, if unreadable."""
    try:
        return any((folder / name).is_file() for name in ("plan.json", "matrix.json"))
    except OSError as error:
        msg = f"{named_by}: cannot read {folder}: {error.strerror}"
        raise pytest.UsageError(msg) from None


def _engine_name(name: str | None, replay: Path | None) -> str | None:
    """Return the engine to judge alone; raise pytest.UsageError for an unknown one, and in a replay, whose engine is stored."""
    if name is not None and replay:
        msg = "--specdec-engine: found --specdec-replay; expected a new run: the old engine's run is in the folder old of the new one's"
        raise pytest.UsageError(msg)
    return None if name is None else _require_choice(ENGINES, name, "--specdec-engine")


def _boot_count(count: int | None, replay: Path | None) -> int | None:
    """Return the number of boots on the command line; None if not given.

    Raises pytest.UsageError for a number below 1, and in a replay, whose boots are stored.
    """
    if count is not None and replay:
        msg = "--specdec-boots: found --specdec-replay; expected a new run: a stored run has the boots that it was captured with"
        raise pytest.UsageError(msg)
    if count is not None and count < 1:
        msg = f"--specdec-boots: expected at least 1 boot of each variant; found {count}"
        raise pytest.UsageError(msg)
    return count


def _updates_baselines(count: int, replay: Path | None) -> bool:
    """Return True if the baseline file is to be updated.

    ``count`` says how often the option was given. Raises pytest.UsageError in a replay, whose run is in the file already. Under CI it is
    also raised unless the option is given twice, so that a CI job does not move its own gates by accident.
    """
    if count and replay:
        msg = "--specdec-update-baselines: found --specdec-replay; expected a new run: a stored run is in the file already"
        raise pytest.UsageError(msg)
    if count == 1 and os.environ.get("CI"):
        msg = "--specdec-update-baselines: refused under CI (the variable CI is set); give the option twice to update the file there"
        raise pytest.UsageError(msg)
    return count > 0


def _accepted_reason(text: str | None, update_count: int) -> str:
    """Return the reason for accepting a regression; empty if none is accepted.

    Raises pytest.UsageError for an empty ``text``, or if --specdec-update-baselines, given ``update_count`` times, is missing.
    """
    if text is None:
        return ""
    option = "--specdec-accept-regression"
    if not update_count:
        msg = f"{option}: found no --specdec-update-baselines; expected both: only an update loosens gates"
        raise pytest.UsageError(msg)
    if not text.strip():
        msg = f"{option}: found an empty value; expected why the gates may be loosened, such as a new driver or another draft model"
        raise pytest.UsageError(msg)
    return " ".join(text.split())

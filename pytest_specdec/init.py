"""The command ``init``: a commented config to begin with and, on request, a copy of the suites. It never overwrites a file."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.config import load, matrix, shipped
from pytest_specdec.engines.optional import ConfigTemplate
from pytest_specdec.engines.reference import Reference
from pytest_specdec.engines.registry import engine_of, kinds
from pytest_specdec.errors import ConfigError, EngineError, SpecdecError
from pytest_specdec.files import yaml
from pytest_specdec.report.progress import plural

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _SubParsersAction

    from pytest_specdec.engines.protocol import Engine

__all__ = ["add", "run"]

_ABOUT = """Write a commented config, NAME.yaml, with --suites an editable copy of the suites, and with --ci the files of a CI job.
No file is overwritten, and none hidden; with --ci a config that is there, or comes with the package, stays and gets its job. Without
--engine: the built-in engine on its own small models, which needs no GPU."""
_NAME = "my-model"
_SCHEMA = Path(shipped.__file__).with_name("schema.json")
_HEAD = """\
# yaml-language-server: $schema={schema}
#
# A server with speculative decoding, held against the same server without it.
#     python -m pytest_specdec doctor {name}
#     pytest {suites} --specdec-config={name} --specdec-depth=smoke

"""
_SHARED = """\
# What both servers have in common. The baseline runs with exactly these settings.
engine:
  kind: {kind}
  model: {model}
  args: {{}} # the engine's own flags without dashes, values as they are

# A variant adds settings to the engine above. Each one is judged against the baseline.
variants:
  variant:
    args: {{}} # the flags that switch speculation on{speculator}
"""
_SECTIONS = {
    "gates": """\
# Floors that hold on every machine; --specdec-update-baselines adds those measured on yours.
gates:
  # Response tokens per second at one client, speculative over baseline.
  speedup: {at_least: 1.0}
""",
    "allow_inconclusive": """\
# Families whose inconclusive verdicts do not fail at standard and deep depth.
allow_inconclusive: []
""",
    "require": """\
# Features that every arm must honour: a refusal fails instead of being skipped. With speed, one that no gate could decide on fails too.
require: [json_schema]
""",
}
"""What a template may leave out."""
_SETTINGS = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
"""Files that may hold settings of pytest already, which another one would hide."""
_INI = """\
[pytest]
# `pytest suites/` judges this config unless --specdec-config names another.
specdec_config = {name}
"""


_SCRIPT = "specdec-ci.sh"
_CI = {
    "github": {"github.yml": ".github/workflows/specdec.yml", _SCRIPT: _SCRIPT, "specdec-comment.sh": "specdec-comment.sh"},
    "gitlab": {"gitlab.yml": "specdec.gitlab-ci.yml", _SCRIPT: _SCRIPT},
    "buildkite": {"buildkite.yml": ".buildkite/specdec.yml", _SCRIPT: _SCRIPT},
    "jenkins": {"Jenkinsfile": "Jenkinsfile.specdec", _SCRIPT: _SCRIPT},
}
"""The files of each CI system, from those beside the shipped configs."""


def add(commands: _SubParsersAction[ArgumentParser]) -> None:
    """Register the command ``init`` and its options."""
    parser = commands.add_parser("init", help="write a config to begin with", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME", nargs="?", default=_NAME, help=f"the config's name (default: {_NAME})")
    parser.add_argument("--engine", metavar="KIND", help=f"the engine to judge: {', '.join(kinds())}")
    parser.add_argument("--model", help="its target model: a name that the engine knows, or a path")
    parser.add_argument("--speculator", metavar="MODEL", help="the draft model or head, or a method that needs none, such as ngram")
    parser.add_argument("--suites", action="store_true", help="copy the suites into suites/, to be edited")
    parser.add_argument("--ci", metavar="SYSTEM", choices=_CI, help=f"write a job that judges the config: {', '.join(_CI)}")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Write the config, suites and CI job asked for; print the next commands.

    An existing config gets a CI job, files that ``_CI`` has by CI system, and stays as it is; without ``--ci`` it is an error. Returns the
    exit code: 2 after an error, else 0. No file is overwritten.
    """
    here = Path.cwd()
    existing_name = _find_existing_name(arguments, here)
    path = load.find(existing_name, here) if existing_name else Path(f"{_strip_suffix(arguments.name)}.yaml")
    path = path.relative_to(here) if path.is_relative_to(here) else path
    name = existing_name or str(path.with_suffix(""))
    job_files = [Path(target) for target in _CI.get(arguments.ci, {}).values()]
    is_new = not (existing_name and arguments.ci)
    try:
        _check_not_shipped(arguments, path)
        _check_unused(arguments.name, path if is_new else None, [*([Path("suites")] if arguments.suites else []), *job_files])
        if is_new:
            _write_new(path, _config_text(arguments, name, here))
        is_matrix = matrix.is_matrix(path)
        about = _describe_matrix(path) if is_matrix else _describe_pairs(path)
        files = [*([str(path)] if is_new else []), *(_copy_suites(name) if arguments.suites else ())]
        files += _write_job(arguments.ci, name, here)
    except SpecdecError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"wrote {', '.join(files)}: {about}\n")
    sys.stdout.write("next:\n" + "".join(f"  {line}\n" for line in _next_commands(name, here, is_matrix=is_matrix)))
    sys.stdout.flush()
    return 0


def _describe_pairs(path: Path) -> str:
    """Return the engine, model and variants of a config; raise ConfigError for one with a mistake."""
    config = load.load(path)
    return f"{config.engine.kind} serving {config.engine.model}, variants {', '.join(variant.name for variant in config.variants)}"


def _describe_matrix(path: Path) -> str:
    """Return the size of a config's matrix; raise ConfigError for one with a mistake."""
    whole = matrix.load_matrix(path).matrix
    return f"a matrix of {plural(len(whole.cells), 'cell')} in {plural(len(whole.groups), 'group')}"


def _strip_suffix(name: str) -> str:
    return name.removesuffix(".yaml").removesuffix(".yml")


def _find_existing_name(arguments: Namespace, here: Path) -> str | None:
    """Return the name that finds an existing config; None without one.

    It is the name as given or without its suffix. A config shipped with the package counts only if a CI job is asked for
    and no engine is named: the options then ask for no config of the user's own.
    """
    for name in (arguments.name, _strip_suffix(arguments.name)):
        try:
            path = load.find(name, here)
        except ConfigError:
            continue
        if path.resolve().parent != shipped.CONFIGS.resolve() or (arguments.ci and not arguments.engine):
            return name
    return None


def _check_not_shipped(arguments: Namespace, path: Path) -> None:
    """Raise ConfigError if a new config would hide a shipped one.

    That is so if it has the name of a config of the package, and neither ``--engine`` nor ``--ci`` is given.
    """
    if path.parent == Path() and not (arguments.ci or arguments.engine) and (shipped.CONFIGS / path.name).is_file():
        what = f"{path.stem} is a config of the package, which one written here would hide"
        remedy = (
            f"run it by its name, --specdec-config={path.stem}; or choose another NAME; or edit a copy: cp {shipped.CONFIGS / path.name} ."
        )
        raise ConfigError(what, where="NAME", found=path.stem, expected="a name of your own", remedy=remedy)


def _check_unused(name: str, config_path: Path | None, others: list[Path]) -> None:
    """Raise ConfigError for an empty name or an existing file.

    It is called before any file is written. ``config_path`` is the config to be written, None if there is none, and ``others`` are the
    other files. If the config exists and others are to be written, the error says how to copy the suites alone.
    """
    if not name:
        what = "the config has no name"
        raise ConfigError(what, where="NAME", found="an empty value", expected="a name", remedy="is an environment variable unset?")
    for path in (*([] if config_path is None else [config_path]), *others):
        if path.exists() or path.is_symlink():
            copy = f"; the suites alone: cp -r {shipped.SUITES} suites" if others and path is config_path else ""
            what, remedy = f"{path} is there already and stays as it is", f"choose another NAME, or move it away{copy}"
            raise ConfigError(what, where=str(path.absolute()), found="a file or folder", expected="none", remedy=remedy)


def _write_new(path: Path, text: str) -> None:
    """Write a new file, and never over an existing one.

    Raises ConfigError if the file exists or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        what = f"{path} cannot be written"
        raise ConfigError(what, where=str(path.absolute()), found=str(error), expected="a folder to write into") from None


def _config_text(arguments: Namespace, name: str, here: Path) -> str:
    """Return the text of the config.

    It has a head, the engine's part, and the sections that this part lacks. Without ``--engine`` that part is of the
    reference engine. Raises ConfigError if a model or speculator is given without an engine.
    """
    if arguments.engine is None and (arguments.model or arguments.speculator):
        what, option = "no engine is named", "--model" if arguments.model else "--speculator"
        raise ConfigError(what, where="--engine", found=f"{option} alone", expected="the engine that serves it", remedy="--engine KIND")
    body = _config_body(engine_of(arguments.engine or Reference.kind), arguments.model, arguments.speculator)
    config_data = yaml.load(body, name).data
    assert isinstance(config_data, dict), "a template begins with engine and variants"
    missing_sections = [section for key, section in _SECTIONS.items() if key not in config_data]
    suites = "suites/" if arguments.suites else shipped.arguments(here)
    return "\n".join([_HEAD.format(schema=_SCHEMA, name=shlex.quote(name), suites=suites) + body, *missing_sections])


def _config_body(engine: Engine, model: str | None, speculator: str | None) -> str:
    """Return the engine's own config text, or a general one.

    An engine has its own text if it is a ConfigTemplate; else ``_SHARED`` is filled in. Raises EngineError if the engine has none and no
    model is given.
    """
    if isinstance(engine, ConfigTemplate):
        return engine.template(model, speculator)
    if not model:
        what = f"{engine.kind} writes no config without a model"
        raise EngineError(what, where="--model", found="nothing", expected="the target model", remedy="--model NAME")
    speculator_note = f", with {speculator}" if speculator else ""
    return _SHARED.format(kind=engine.kind, model=yaml.scalar(model), speculator=speculator_note)


def _copy_suites(name: str) -> tuple[str, ...]:
    """Copy the suites and return the names of the files written.

    A pytest.ini (the first of ``_SETTINGS``) that names the config is added. It is left out if any file of ``_SETTINGS``
    exists: such files may have pytest settings, which a new pytest.ini would hide.
    """
    shutil.copytree(shipped.SUITES, "suites", ignore=shutil.ignore_patterns("configs", "__pycache__"))
    if any(Path(settings).exists() for settings in _SETTINGS):
        return ("suites/",)
    _write_new(Path(_SETTINGS[0]), _INI.format(name=name))
    return ("suites/", _SETTINGS[0])


def _write_job(system: str | None, config_name: str, here: Path) -> list[str]:
    """Write the files of a CI job and return their names.

    ``system`` is a key of ``_CI``; None writes nothing. The files are shipped with places to fill in: the config
    ``config_name``, and the suites in ``here`` or else those of the package. Raises ConfigError if a file exists or cannot be written.
    """
    suites = "suites/" if shipped.arguments(here) == "suites/" else f"--pyargs {shipped.MODULE}"
    targets = _CI[system] if system else {}
    for source, target in targets.items():
        text = (_SCHEMA.parent / "ci" / source).read_text(encoding="utf-8")
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        _write_new(Path(target), text.replace("@CONFIG@", shlex.quote(config_name)).replace("@SUITES@", suites))
    return list(targets.values())


def _next_commands(config_name: str, here: Path, *, is_matrix: bool) -> tuple[str, str]:
    """Return the commands to type next.

    They are the doctor, or for a matrix the list of its cells, and the suites at smoke depth.
    """
    name, command = shlex.quote(config_name), "matrix" if is_matrix else "doctor"
    suites = shipped.arguments(here)
    return f"python -m pytest_specdec {command} {name}", f"pytest {suites} --specdec-config={name} --specdec-depth=smoke"

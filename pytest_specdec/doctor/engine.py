"""The engine: whether it is installed, which version it is, and whether its own help lists every flag of every arm.

An arm is one server that a run would start, with its command line. The engine's adapter, code of this package, makes that from the config
and may add flags.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from pytest_specdec.config.rules import plain
from pytest_specdec.config.validate import dotted_path, nearest
from pytest_specdec.doctor import probe
from pytest_specdec.doctor.check import error_check, fail, ok, warn
from pytest_specdec.errors import SpecdecError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Executor

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.doctor.probe import ProgramResult
    from pytest_specdec.engines.protocol import Engine, EngineProgram
    from pytest_specdec.files.yaml import KeyPath, YamlDocument

_QUICK_S = 15.0
_HELP = ("--help=all", "--help")
"""Some parsers list only groups under --help; others do not know --help=all."""
_ENTRY = re.compile(r" {0,8}(-.*)")
"""The entry of a flag; deeper lines go on with the text of one."""
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """An engine's parser, as its help shows it."""

    flags: frozenset[str] = frozenset()
    """Empty when the help could not be read."""
    complaint: str = ""
    """The parser's error about a value, or why the help could not be read."""
    abbreviates: bool = False
    """Whether the parser takes the beginning of a flag for the flag."""

    def knows(self, flag: str) -> bool:
        """Return True if the parser accepts ``flag``.

        A parser that allows abbreviations also accepts the beginning of a flag, if only one flag begins so.
        """
        return flag in self.flags or (self.abbreviates and len([name for name in self.flags if name.startswith(flag)]) == 1)


def checks(config: Config, engine: Engine, arms: Sequence[Arm], pool: Executor) -> Iterator[Check]:
    """Yield the checks of the engine's program and of every arm's flags.

    ``arms`` has at least one. The program is asked for its version, in ``pool``, and for its help at the same time, since each may take
    half a minute. An engine in an image is not asked, nor one that does not say how; a warning about its flags says so. If the engine
    or a model is missing, that is a failed check, and flags are not checked.
    """
    try:
        commands = _commands_by_arm(config, engine, arms)
    except SpecdecError as error:
        yield error_check("engine", error)
        yield warn("flags", "not checked: what the engine's check found comes first")
        return
    _, first_command = commands[0]
    program = None if config.engine.image else engine.program(first_command)
    version = pool.submit(probe.run, program.version, arms[0].env) if program else None
    flag_results = flags(config, engine, arms)  # meanwhile
    if config.engine.image:
        yield _check_image(config.engine.image)
    elif program is None or version is None:
        yield ok("engine", first_command[0])
    else:
        yield _check_version(engine.kind, program, version.result())
    yield from flag_results


def flags(config: Config, engine: Engine, arms: Sequence[Arm]) -> tuple[Check, ...]:
    """Check every arm's flags with the engine's parser.

    ``arms`` has at least one. There is one failed check if the engine is missing, and one warning if the engine is in an
    image or does not say how its help is read.
    """
    try:
        commands = _commands_by_arm(config, engine, arms)
    except SpecdecError as error:
        return (error_check("engine", error),)
    if config.engine.image:
        return (warn("flags", "not checked: the engine is in an image"),)
    _, first_command = commands[0]  # any one: all arms run the same program
    program = engine.program(first_command)
    if program is None:
        return (warn("flags", f"not checked: the engine {engine.kind} does not say how its help is read"),)
    return flag_checks(config, commands, help_of(program, [argv for _, argv in commands], arms[0]))


def _commands_by_arm(config: Config, engine: Engine, arms: Sequence[Arm]) -> list[tuple[Arm, tuple[str, ...]]]:
    """Return every arm with the command line of its server.

    Raises ConfigError or EngineError if the engine or a model is missing.
    """
    engine.check(config)
    return [(arm, arm.command(config, engine).argv) for arm in arms]


def _check_image(name: str) -> Check:
    """Check that the engine's image is on this machine; a missing one gives a warning."""
    if probe.run(("docker", "image", "inspect", name), {}, _QUICK_S).exit_code == 0:
        return ok("engine", f"image {name}")
    return warn("engine", f"image {name} is not on this machine: the first boot pulls it", remedy=f"docker pull {name}")


def _check_version(kind: str, program: EngineProgram, result: ProgramResult) -> Check:
    """Check that the engine's program prints its version.

    A program that cannot run prints none.
    """
    version = result.version(program.version_prefix)
    if version:
        return ok("engine", f"{kind} {version}, {os.path.normpath(program.version[0])}")
    ending = "not in time" if result.exit_code is None else f"with exit code {result.exit_code}"
    words = f"found:    {result.last_words}"
    return fail("engine", f"{kind} prints no version and ended {ending}", words, remedy=f"repair {program.version[0]}")


def help_of(program: EngineProgram, argvs: Sequence[Sequence[str]], arm: Arm) -> Help:
    """Return the flags in a program's help; without any if it cannot be read.

    ``argvs`` are the commands of all arms; the program runs with the variables of ``arm``. Parsers differ in the spelling of the help
    flag: if one lists no flags, the other is tried.
    """
    bare_result = None
    for spelling in _HELP:
        # A parser reads the arguments before its help flag: this call checks their values, and prints the help if all are valid.
        full_result = probe.run((*program.help, *_join_arguments(argvs), spelling), arm.env)
        if full_result.exit_code == 0 and (flags := listed_flags(full_result.out)):
            return Help(flags=flags, abbreviates=program.abbreviates)
        # Otherwise it has most likely ended with an error about a value; without the arguments it prints the help.
        bare_result = probe.run((*program.help, spelling), arm.env)
        if bare_result.exit_code == 0 and (flags := listed_flags(bare_result.out)):
            ended_in_time = full_result.exit_code is not None
            complaint = full_result.last_words if ended_in_time else ""
            return Help(flags=flags, complaint=complaint, abbreviates=program.abbreviates)
    return Help(complaint=bare_result.last_words if bare_result else "")


def _join_arguments(argvs: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the flags of all arms as one command's arguments.

    So a single call of the parser, which is slow, checks all arms: it reads the value of every flag, also if the same flag
    comes again. The model comes first. Program and subcommand are left out.
    """
    # The words before any flag, such as `vllm serve MODEL`: the program, and a model as the last of any others.
    beginnings = [tuple(takewhile(lambda word: not word.startswith("--"), argv)) for argv in argvs]
    flags = (word for beginning, argv in zip(beginnings, argvs, strict=True) for word in argv[len(beginning) :])
    words_after_program = beginnings[0][1:]  # the same for all arms
    return (*words_after_program[-1:], *flags)


def listed_flags(help_text: str) -> frozenset[str]:
    """Return the long and short flags that a help text lists.

    Flags that are only mentioned in the text about others are left out.
    """
    # Lines that begin with a dash, little indented: `-m, --model NAME  the model to serve`.
    entries = (match[1] for line in help_text.splitlines() if (match := _ENTRY.match(line)))
    # The text begins after two spaces or more. Those after a comma are padding before another name of the flag.
    names_of_entries = (re.split(r"(?<![, ]) {2,}", entry, maxsplit=1)[0] for entry in entries)
    return frozenset(flag for flag_names in names_of_entries for flag in _FLAG.findall(flag_names))


def flags_of(argv: Iterable[str]) -> Iterator[str]:
    """Yield a command line's flags in the spelling of help texts.

    Underscores become dashes. ``--a.b=c`` becomes ``--a``.
    """
    for word in argv:
        if word.startswith("--"):
            name = word.removeprefix("--").partition("=")[0].partition(".")[0]
            yield f"--{name.replace('_', '-')}"


def flag_checks(config: Config, commands: Sequence[tuple[Arm, Sequence[str]]], parser_help: Help) -> tuple[Check, ...]:
    """Check every arm's flags against the engine's help.

    ``commands`` are the arms, each with its command line. An unknown flag is a failed check. The parser's error about a value is
    reported too, but not if it names an unknown flag. If all flags are known, one check says so. Help that could not be read gives a
    warning.
    """
    if not parser_help.flags:
        return (warn("flags", "not checked: the engine's help could not be read", f"found:    {parser_help.complaint}"),)
    document = config.document()
    flags_with_arm = [(arm, flag) for arm, argv in commands for flag in flags_of(argv)]
    unknown_with_arm = [(arm, flag) for arm, flag in flags_with_arm if not parser_help.knows(flag)]
    # By its line of text: arms that have a flag from one place in the config share a check.
    remedies = {_describe_unknown(arm, flag, parser_help, document): _unknown_remedy(arm, flag) for arm, flag in unknown_with_arm}
    failures = [fail("flags", line, remedy=remedy) for line, remedy in remedies.items()]
    # An error may spell flags with underscores; those of the commands have dashes (flags_of).
    complaint_flags = set(_FLAG.findall(parser_help.complaint.replace("_", "-")))
    if parser_help.complaint and complaint_flags.isdisjoint(flag for _, flag in unknown_with_arm):
        failures.append(fail("flags", parser_help.complaint, remedy="give the value that the engine's help asks for"))
    return tuple(failures) or (
        ok("flags", f"all {len({flag for _, flag in flags_with_arm})} known to the engine, of {len(parser_help.flags)} in its help"),
    )


def _describe_unknown(arm: Arm, flag: str, parser_help: Help, document: YamlDocument) -> str:
    """Return a line on an unknown flag and its place.

    The nearest known flag is suggested.
    """
    suggestion = nearest(flag, parser_help.flags)
    return f"{_locate_flag(arm, flag, document)}: found {flag}, which the engine does not know" + (f"; {suggestion}" if suggestion else "")


def _unknown_remedy(arm: Arm, flag: str) -> str:
    """Return the remedy for a flag unknown to the engine.

    A flag of the config is to be corrected. One added by the adapter shows that it takes the program for a newer release.
    """
    if _argument_path(arm, flag):
        return "write it as the engine's help does, or take it out"
    return "a new release is assumed where none is found beside the program: name its environment (engine.venv), or the program in it"


def _argument_path(arm: Arm, flag: str) -> KeyPath | None:
    """Return the place in the config of a flag's argument.

    The argument may have the flag's name, the name without ``no-``, or a name with dots after it. Returns None if the
    engine's adapter added the flag.
    """
    name = plain(flag)
    dotted_paths = (path for spelling, path in arm.paths.items() if spelling.partition(".")[0] == name)
    return arm.paths.get(name) or arm.paths.get(name.removeprefix("no-")) or next(dotted_paths, None)


def _locate_flag(arm: Arm, flag: str, document: YamlDocument) -> str:
    """Return ``file:line  path`` of the argument behind ``flag``.

    A flag that the engine's adapter added is located by its arm's name.
    """
    path = _argument_path(arm, flag)
    return f"{document.source}:{document.line(path)}  {dotted_path(path)}" if path else f"{arm.name}, added by the engine's adapter"

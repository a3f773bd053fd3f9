"""Tables of docs/'s reference pages: options, commands, fixtures, families and exit codes, from the code that decides them."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from pytest_specdec import __main__ as command_line
from pytest_specdec import plugin
from pytest_specdec.model.families import FAMILIES, FamilyRow
from pytest_specdec.model.workload import Depth
from pytest_specdec.plugin import options
from pytest_specdec.report.run import RunClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Recorder", "tables"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One option or argument, as it is registered."""

    names: tuple[str, ...]
    metavar: str
    """Of its value; empty for a switch."""
    meaning: str

    @property
    def cell(self) -> str:
        """What is typed."""
        name = self.names[-1]
        return f"`{name} {self.metavar}`" if self.metavar and name.startswith("-") else f"`{self.metavar or name}`"


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Stands in for a parser of pytest or argparse, and keeps what is registered on it."""

    about: str = ""
    arguments: list[Argument] = field(default_factory=list)
    ini: list[Argument] = field(default_factory=list)
    commands: dict[str, Recorder] = field(default_factory=dict)

    def addoption(
        self,
        *names: str,
        help: str,  # noqa: A002 - the keyword of both parsers
        action: str = "",
        metavar: str = "",
        choices: Iterable[str] = (),
        **_: object,
    ) -> None:
        """Keep an option, or an argument without dashes."""
        shown = "" if action in {"store_true", "count"} else metavar or "|".join(choices) or names[-1].strip("-").upper()
        self.arguments.append(Argument(names=names, metavar=shown, meaning=help))

    add_argument = addoption

    def addini(self, name: str, meaning: str, **_: object) -> None:
        """Keep an ini key."""
        self.ini.append(Argument(names=(name,), metavar="", meaning=meaning))

    def add_parser(self, name: str, *, description: str, **_: object) -> Recorder:
        """Keep a command, and return what its arguments are registered on."""
        return self.commands.setdefault(name, Recorder(about=description))

    def getgroup(self, *_: str) -> Recorder:
        """Return the parser itself: a heading of ``--help`` is no table of its own."""
        return self

    add_argument_group = getgroup

    def set_defaults(self, **_: object) -> None:
        """Drop the function of a command."""


def tables() -> dict[str, str]:
    """Return the tables as Markdown, by name."""
    recorder = Recorder()
    options.add(recorder)
    return {
        "options": _argument_table("option", recorder.arguments),
        "ini": _argument_table("key", recorder.ini),
        "commands": _command_table(),
        "fixtures": _fixture_table(),
        "families": _family_table(),
        "exit codes": _exit_code_table(),
    }


def _command_table() -> str:
    """Return the commands of ``python -m pytest_specdec`` with their arguments, as Markdown."""
    recorder = Recorder()
    command_line.add_commands(recorder)
    rows = [
        row
        for name, command in recorder.commands.items()
        for row in ((f"**`{name}`**", command.about), *((argument.cell, argument.meaning) for argument in command.arguments))
    ]
    return _table(("command, arguments", "meaning"), rows)


def _fixture_table() -> str:
    """Return the fixtures of the plugin, as Markdown."""
    functions = [node for node in ast.walk(ast.parse(inspect.getsource(plugin))) if isinstance(node, ast.FunctionDef)]
    rows = [
        (f"`{function.name}`", "session" if "scope='session'" in decorator else "test", _describe_value(ast.get_docstring(function) or ""))
        for function in functions
        for decorator in map(ast.unparse, function.decorator_list)
        if decorator.startswith("pytest.fixture")
    ]
    return _table(("fixture", "scope", "what it gives"), rows)


def _family_table() -> str:
    """Return the probe families with what their rows and judges say, as Markdown."""
    heads = ("family", "row of the report", "what is judged", "workloads (smoke)", "budget", "follows from")
    return _table(heads, [_family_cells(row) for row in FAMILIES.values()])


def _exit_code_table() -> str:
    """Return the classes of a run with their exit codes, as Markdown."""
    body = ast.parse(inspect.getsource(RunClass)).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings = {
        name.id: ast.literal_eval(below.value)
        for one, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(one, ast.Assign) and isinstance(below, ast.Expr) and isinstance(name := one.targets[0], ast.Name)
    }
    rows = [(f"`RESULT: {one}`", str(one.exit_code), meanings[one.name]) for one in sorted(RunClass, key=lambda one: one.exit_code)]
    return _table(("last line", "code", "meaning"), rows)


def _first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring on one line."""
    return " ".join(docstring.split()).partition(". ")[0].removesuffix(".") + "."


def _argument_table(head: str, arguments: Iterable[Argument]) -> str:
    return _table((head, "meaning"), [(argument.cell, argument.meaning.replace("<", "&lt;")) for argument in arguments])


def _family_cells(row: FamilyRow) -> tuple[str, ...]:
    judged = _first_sentence(import_module(row.judge).__doc__ or "").partition(": ")[2] if row.judge else ""
    workloads = f"{row.workloads_at(Depth.STANDARD)} ({row.workloads_at(Depth.SMOKE)})"
    return f"`{row.name}`", row.promise or row.name, judged[:1].upper() + judged[1:], workloads, row.budget, ", ".join(row.follows)


def _describe_value(docstring: str) -> str:
    """Return what a fixture gives, without the verb that each of their docstrings begins with."""
    summary, _, rest = docstring.partition("\n\n")
    given = summary.removeprefix("Return ")
    return " ".join(f"{given[:1].upper()}{given[1:]} {rest}".split())


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (heads, ["---"] * len(heads), *rows))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("``", "`")

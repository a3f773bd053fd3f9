"""JSON Schemas of the files of a run, from the dataclasses that are written to them; ``python -m benchmarks.pages`` writes them."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.gates import baseline_file
from pytest_specdec.model.baseline import FIGURES, Environment, Gate
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.families import FAMILIES
from pytest_specdec.model.plan import Plan
from pytest_specdec.model.status import Status
from pytest_specdec.model.transcript import Answer, Position, Score, Transcript
from pytest_specdec.model.workload import OUTSIDE_FAMILY, Family
from pytest_specdec.report import run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pytest_specdec.model.workload import JSON

    Schema = dict[str, Any]

__all__ = ["texts"]

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Final = {"JSON": object, **{cls.__name__: cls for cls in (Capabilities, Environment, Plan, Status)}}
"""What annotations name and their modules import for the type checker alone."""
_PLAIN: Final = {str: "string", int: "integer", bool: "boolean"}
_ROLE: Final = re.compile(r":[a-z]+:`([^`]*)`")
_COUNT: Final = {"description": "Lines after this one.", "type": "integer", "minimum": 0}


def texts() -> dict[str, str]:
    """Return the schemas by kind of file, as JSON."""
    made = {
        "transcript": _transcript(),
        "score": _score(),
        "plan": _plan(),
        "baseline": _baseline(),
        "run": _run(),
    }
    return {kind: json.dumps(schema, indent=1, ensure_ascii=False) + "\n" for kind, schema in made.items()}


class Definitions:
    """Schemas of annotations, and the definitions that they refer to."""

    def __init__(self) -> None:
        self.by_name: Schema = {}

    def document(self, name: str, title: str, description: str, rest: Schema) -> Schema:
        """Return a whole schema called ``name``."""
        return {"$schema": _DRAFT, "$id": name, "title": title, "description": description, **rest, "$defs": self.by_name}

    def fields(self, cls: type, without: Collection[str] = ()) -> Schema:
        """Return the properties of a dataclass."""
        hints, prose = get_type_hints(cls, localns=_NAMES), _field_docstrings(cls)
        names = [field.name for field in fields(cls) if field.name not in without]  # type: ignore[arg-type]
        return {name: {**_description(prose.get(name, "")), **self.schema_of(hints[name])} for name in names}

    def define(self, cls: type, properties: Schema, optional: Collection[str] = ()) -> Schema:
        """Define ``cls`` as an object of ``properties`` and return the reference to it."""
        self.by_name[cls.__name__] = {**_description(inspect.getdoc(cls) or ""), **_object(properties, optional)}
        return _reference(cls.__name__)

    def schema_of(self, hint: Any) -> Schema:  # noqa: ANN401 - any annotation
        """Return the schema of what the codec writes for an annotation."""
        if hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if hint is float:
            return self._real()
        if hint is Family:
            return self._family()
        if isinstance(hint, type) and issubclass(hint, Enum):
            return {"enum": [member.value for member in hint]}
        if isinstance(hint, type) and is_dataclass(hint):
            return _reference(hint.__name__) if hint.__name__ in self.by_name else self._dataclass(hint)
        return self._generic(get_origin(hint), get_args(hint))

    def _generic(self, origin: object, args: tuple[Any, ...]) -> Schema:
        if origin in {Union, types.UnionType}:
            members = [self.schema_of(arg) for arg in args if arg is not types.NoneType]
            return {"anyOf": [*members, {"type": "null"}]}
        if origin is Literal:
            return {"const": args[0]}
        if origin is tuple and args[1:] == (...,):
            return {"type": "array", "items": self.schema_of(args[0])}
        if origin is tuple:
            return _tuple(self.schema_of(arg) for arg in args)
        if origin in {Mapping, dict}:
            names = {} if args[0] is str else {"propertyNames": self.schema_of(args[0])}
            return {"type": "object", **names, "additionalProperties": self.schema_of(args[1])}
        return {}

    def _dataclass(self, cls: type) -> Schema:
        self.by_name[cls.__name__] = {}
        return self.define(cls, self.fields(cls))

    def _real(self) -> Schema:
        self.by_name["Real"] = {
            "description": "A number; JSON has no infinity, so that it is written as a word.",
            "anyOf": [{"type": "number"}, {"enum": ["-inf", "inf", "nan"]}],
        }
        return _reference("Real")

    def _family(self) -> Schema:
        self.by_name["Family"] = {
            "description": "This package's families, or the dotted name of another package's that the plan declares.",
            "anyOf": [{"enum": list(FAMILIES)}, {"type": "string", "pattern": f"^{OUTSIDE_FAMILY}$"}],
        }
        return _reference("Family")


def _reference(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _object(properties: Schema, optional: Collection[str] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _tuple(items: Iterable[Schema]) -> Schema:
    schemas = list(items)
    return {"type": "array", "minItems": len(schemas), "items": False, "prefixItems": schemas}


def _description(docstring: str) -> Schema:
    """Return the first paragraph of a docstring as a description in JSON's words; nothing for an empty one."""
    paragraph = " ".join(docstring.split("\n\n", maxsplit=1)[0].split())
    text = re.sub(r"\bNone\b", "null", _ROLE.sub(r"\1", paragraph).replace("``", ""))
    return {"description": text} if text else {}


@cache
def _field_docstrings(cls: type) -> Mapping[str, str]:
    """Return what stands below the fields of a dataclass."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(defined, ast.ClassDef)
    prose = {}
    for field, below in zip(defined.body, defined.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            prose[field.target.id] = inspect.cleandoc(str(below.value.value))
    return prose


def _lines(definitions: Definitions, name: str, header: Schema, line: Schema) -> Schema:
    """Return the alternatives of a file of lines: a header, then one value a line."""
    properties = {"schema": {"const": name}, **header, "count": _COUNT}
    definitions.by_name["Header"] = {"description": "The first line.", **_object(properties)}
    return {"oneOf": [_reference("Header"), line]}


def _transcript() -> Schema:
    made = Definitions()
    rest = _lines(made, transcripts.SCHEMA, made.fields(Transcript, {"answers"}), made.schema_of(Answer))
    title, text = "A line of a transcript", "transcripts/<arm>/<workload>.jsonl: a header, then one answer a line."
    return made.document(transcripts.SCHEMA, title, text, rest)


def _score() -> Schema:
    """Return that of scores: what all of a file share stands in its header, and a position is written as a list."""
    made = Definitions()
    values = {field.name: made.schema_of(get_type_hints(Position)[field.name]) for field in fields(Position)}
    layout = f"{inspect.getdoc(Position)} As [{', '.join(values)}]."
    made.by_name[Position.__name__] = {"description": " ".join(layout.split()), **_tuple(values.values())}
    shared = made.fields(Score, {field.name for field in fields(Score)} - {"arm", "under"})
    line = made.define(Score, made.fields(Score, set(shared)), optional={"prompt_token_ids"})
    header = {**shared, "workload": {"type": "string"}}
    title, text = "A line of a file of scores", "scores/<under>/<arm>/<workload>.jsonl: a header, then one answer's scores a line."
    return made.document(transcripts.SCORES_SCHEMA, title, text, _lines(made, transcripts.SCORES_SCHEMA, header, line))


def _plan() -> Schema:
    made = Definitions()
    rest = _object({"schema": {"const": run_documents.PLAN_SCHEMA}, **made.fields(Plan)})
    return made.document(run_documents.PLAN_SCHEMA, "A plan", "plan.json: everything a run will do, computed before anything boots.", rest)


def _baseline() -> Schema:
    """Return that of baseline files, where a gate's fields without a value are left out."""
    made = Definitions()
    written = made.fields(Gate, {field.name for field in fields(Gate)} - set(baseline_file.FIELDS))
    written["figure"]["enum"] = list(FIGURES)
    gate = made.define(Gate, written, optional=written.keys() - {"figure"})
    machine = {"description": "The name of the machine and of the file: its figures are compared with no other's.", "type": "string"}
    parts = {"machine": machine, "environment": made.schema_of(Environment), "gates": {"type": "array", "items": gate}}
    rest = _object({"schema": {"const": baseline_file.SCHEMA}, **parts})
    text = "baselines/<config>/<machine>.yaml: gates with the machine and the samples that they come from."
    return made.document(baseline_file.SCHEMA, "A baseline file", text, rest)


def _run() -> Schema:
    made = Definitions()
    known = made.define(Capabilities, made.fields(Capabilities, {"streams"}))
    own = made.fields(run.Run)
    truths = {name: _description(inspect.getdoc(getattr(run.Run, name)) or "") for name in ("red", "judged", "not_counted")}
    text, texts_by = {"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}
    properties = {
        "schema": {"const": run.SCHEMA},
        "version": {"description": "Of pytest-specdec.", **text},
        **{name: own[name] for name in ("made_at", "directory", "replayed")},
        "class": {"description": "What the run came to, in one word.", "enum": [member.value for member in run.RunClass]},
        **{name: {**truths[name], "type": "boolean"} for name in ("red", "judged")},
        "counts": {
            "description": "Judgements by outcome; no verdict counts the tests without one.",
            "type": "object",
            "propertyNames": {"enum": list(run.COUNTED_AS)},
            "additionalProperties": {"type": "integer", "minimum": 1},
        },
        **{name: own[name] for name in ("upgrade", "plan", "environment", "baselines", "status")},
        "capabilities": {"description": "By arm.", "type": "object", "additionalProperties": known},
        "parameters": {
            "description": "What each arm does with each sampling parameter, by arm and parameter; the worst that a workload shows.",
            "type": "object",
            "additionalProperties": texts_by,
        },
        "not_counted": {**truths["not_counted"], "type": "array", "items": text},
        "findings": {
            "description": "What one fault turned red: its tests by variant, of which the first leads and the others follow from it.",
            "type": "array",
            "items": _object(
                {
                    "name": text,
                    "family": {**text, "description": "The leading test's."},
                    "tests": {"type": "object", "additionalProperties": {"type": "array", "items": text}},
                }
            ),
        },
        **{name: own[name] for name in ("notes", "commands", "judgements")},
    }
    description = "What a session captured or replayed and what was judged of it. The Markdown report is a function of the same values."
    used = _reachable(properties, made.by_name)
    made.by_name = {name: schema for name, schema in made.by_name.items() if name in used}
    return made.document(run.SCHEMA, "A run of pytest-specdec: run.json", description, _object(properties))


def _reachable(schema: object, definitions: Schema) -> set[str]:
    """Return the names of the definitions that ``schema`` refers to, through others too."""
    names = set(re.findall(r'"#/\$defs/([A-Za-z]+)"', json.dumps(schema)))
    while more := {other for name in names for other in _names_in(definitions[name])} - names:
        names |= more
    return names


def _names_in(schema: JSON) -> set[str]:
    return set(re.findall(r'"#/\$defs/([A-Za-z]+)"', json.dumps(schema)))

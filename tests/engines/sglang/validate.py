"""What SGLang's own models say of bodies and command lines: reads JSON from stdin, writes the same names with ``null`` or an error.

    {"bodies": {NAME: [PATH, BODY]}, "commands": {NAME: [FLAG, ...]}}

The package's ``__init__`` imports torch; the modules that matter here do not, so an empty package stands in its place.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import io
import json
import sys
import types
from pathlib import Path

WHEEL = Path(sys.prefix) / "wheel"
ARGUMENTS = WHEEL / "sglang" / "srt" / "server_args.py"


def stand_in(name: str, **members) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


stand_in("sglang", __path__=[str(WHEEL / "sglang")])
stand_in("sglang.utils", convert_json_schema_to_str=json.dumps)
# The readers of numbers and lists that the fields take from a module which imports torch.
stand_in(
    "sglang.srt.utils.common",
    human_readable_int=int,
    json_list_type=json.loads,
    nullable_str=str,
    LORA_TARGET_ALL_MODULES="all",
    SUPPORTED_LORA_TARGET_MODULES=[],
)
stand_in("sglang.srt.utils", __path__=[])
stand_in("sglang.srt.lora.lora_registry", LoRARef=str)
protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
contract = importlib.import_module("sglang.api.v1.api_types")
MODELS = {
    "/v1/completions": protocol.CompletionRequest.model_validate,
    "/v1/chat/completions": protocol.ChatCompletionRequest.model_validate,
    "/generate": contract.GenerateRequest.from_json_value,
}
OPENAI = {"/v1/completions": protocol.CompletionRequest, "/v1/chat/completions": protocol.ChatCompletionRequest}


def body_error(path: str, body: dict) -> str | None:
    """Return why the model refuses a body, or which fields it would ignore."""
    try:
        MODELS[path](json.loads(json.dumps(body)))
    except Exception as error:  # noqa: BLE001 - pydantic's, or the contract's own
        return str(error)
    unknown = sorted(body.keys() - OPENAI[path].model_fields.keys()) if path in OPENAI else []
    return f"ignored: {', '.join(unknown)}" if unknown else None


def parser() -> argparse.ArgumentParser:
    """Return SGLang's parser: declared fields by its own code, and by name alone the few flags that ``server_args.py`` adds by hand."""
    result = argparse.ArgumentParser(prog="sglang serve")
    add = importlib.import_module("sglang.srt.arg_groups.arg_utils").add_cli_args_from_dataclass
    for path in sorted((ARGUMENTS.parent / "arg_groups" / "fields").glob("[a-z]*.py")):
        module = importlib.import_module(f"sglang.srt.arg_groups.fields.{path.stem}")
        for record in [value for value in vars(module).values() if isinstance(value, type) and "_NS_PATH" in vars(value)]:
            add(result, record)
    for flag in by_hand():
        with contextlib.suppress(argparse.ArgumentError):
            result.add_argument(flag)
    return result


def by_hand() -> list[str]:
    """Return the flags of the calls of ``add_argument`` in ``server_args.py``."""
    calls = [node for node in ast.walk(ast.parse(ARGUMENTS.read_text())) if isinstance(node, ast.Call)]
    added = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    return [call.args[0].value for call in added if call.args and isinstance(call.args[0], ast.Constant)]


def command_error(flags: list[str], reader: argparse.ArgumentParser) -> str | None:
    """Return why the parser refuses a command line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            reader.parse_args(flags)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    return None


def main() -> None:
    asked = json.load(sys.stdin)
    reader = parser()
    bodies = {name: body_error(path, body) for name, (path, body) in asked["bodies"].items()}
    commands = {name: command_error(flags, reader) for name, flags in asked["commands"].items()}
    print(json.dumps({"bodies": bodies, "commands": commands, "flags": len(reader._option_string_actions)}))


main()

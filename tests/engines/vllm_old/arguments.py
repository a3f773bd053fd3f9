"""The parser of an early vLLM, made from the calls of ``add_argument`` in its sources: importing them would import torch."""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

FILES = ("arg_utils.py", "cli_args.py")
TYPES: dict[str, Callable[[str], object]] = {"int": int, "float": float, "json.loads": json.loads}
"""Readers of values by their names in the sources; any other takes every text."""
WORDS = {"true": True, "false": False}


def word(text: str) -> bool:
    """Read what ``StoreBoolean`` reads (``vllm/utils.py``)."""
    if text.lower() not in WORDS:
        raise ValueError(text)
    return WORDS[text.lower()]


def parser(folder: Path) -> argparse.ArgumentParser:
    """Return the parser of ``vllm serve``."""
    result = argparse.ArgumentParser(prog="vllm serve", allow_abbrev=False)
    result.add_argument("model_tag")
    for file in FILES:
        for node in ast.walk(ast.parse((folder / file).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
                with contextlib.suppress(argparse.ArgumentError):  # engine and server share a few
                    result.add_argument(*(str(name.value) for name in node.args if isinstance(name, ast.Constant)), **options(node))
    return result


def options(call: ast.Call) -> dict:
    """Return what decides whether a value is taken: action, type, choices and number of values."""
    stated = {keyword.arg: keyword.value for keyword in call.keywords}
    found: dict = {name: stated[name].value for name in ("nargs", "action") if isinstance(stated.get(name), ast.Constant)}
    if "action" in stated and ast.unparse(stated["action"]) == "StoreBoolean":
        return {"type": word, "nargs": "?", "const": True}
    if str(found.get("action")).startswith("store_"):
        return found
    found.pop("action", None)
    with contextlib.suppress(KeyError, ValueError):
        found["choices"] = ast.literal_eval(stated["choices"])
    return {**found, "type": TYPES.get(ast.unparse(stated["type"]) if "type" in stated else "", str)}


def problem(read: argparse.ArgumentParser, argv: list[str]) -> str:
    """Return why the parser refuses a command line; empty where it does not."""
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            read.parse_args(argv)
    except SystemExit:
        return complaint.getvalue().strip().splitlines()[-1]
    return ""

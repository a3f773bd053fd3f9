"""Command lines held against vLLM's own parser; run by the interpreter of .venv-vllm, never imported by the tests.

stdin: {name: [model, flags …]}; stdout: {name: {"ok": bool, "error": str}}. Nothing is loaded and no device is asked for, so recipes for
GPUs can be read where there is none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
from typing import get_args

from vllm.config import SpeculativeConfig
from vllm.config.speculative import SpeculativeMethod
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

METHODS = set(get_args(SpeculativeMethod))
SPECULATIVE_KEYS = {field.name for field in dataclasses.fields(SpeculativeConfig)}


def problem(parser: FlexibleArgumentParser, argv: list[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parsed = parser.parse_args(argv)
            validate_parsed_serve_args(parsed)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except (TypeError, ValueError) as error:
            return str(error)
    setting = {key.replace("-", "_"): value for key, value in (parsed.speculative_config or {}).items()}
    unknown = sorted(setting.keys() - SPECULATIVE_KEYS)
    if setting.get("method", "ngram") not in METHODS:
        unknown.append(f"method {setting['method']}")
    return f"--speculative-config has no {', '.join(unknown)}" if unknown else ""


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    found = {name: problem(parser, argv) for name, argv in json.load(sys.stdin).items()}
    sys.stdout.write(json.dumps({name: {"ok": not error, "error": error} for name, error in found.items()}) + "\n")


if __name__ == "__main__":
    main()

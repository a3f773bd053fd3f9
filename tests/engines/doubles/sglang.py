"""A double of SGLang's server: its command line and HTTP as SGLang 0.5.23 has them, with the reference engine's model underneath.

It shows how we read SGLang, nothing about SGLang itself. Every behaviour names where it was read: a file of the wheel sglang-0.5.23, below
``sglang/srt``. Reported log-probabilities are raw, as SGLang's are at temperature 0 and under SGLANG_RETURN_ORIGINAL_LOGPROB=1. What the
model underneath has not (min_p, repetition_penalty, min_tokens, regex, ebnf) is refused. Environment variables of its own:

    SGLANG_DOUBLE_NO_SPEC_DETAILS   no counts of speculation in answers, as before 0.5.19 (SGLang#33518)
    SGLANG_DOUBLE_COOL_CHATS        chats that state no temperature are drawn at 0.7, as before SGLang#11304
    SGLANG_DOUBLE_FIRST_LOGPROB     log-probabilities of the first token alone where it speculates, as before SGLang#19801
    SPECDEC_FAULT                   a fault of the reference engine, planted where it speculates
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import uvicorn

from pytest_specdec.errors import EngineError
from specdec_reference.build import build_engine
from specdec_reference.cli import ServerSettings, Speculation
from tests.engines.doubles.sglang_http import VERSION, Served

RUNNING_WITH_SPECULATION = 48  # arg_groups/speculative_hook.py: max_running_requests where it is not stated
NGRAM_WINDOW = 12  # arg_groups/speculative_hook.py, _handle_ngram
TRIE_DEPTH = 18  # arg_groups/fields/spec.py, speculative_ngram_max_trie_depth


def python(folder: Path, **variables: str) -> Path:
    """Return a program that stands in for the python of an environment with SGLang in it: ``python -m sglang.launch_server``."""
    program, root = folder / "python", Path(__file__).parents[3]
    folder.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        + "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
        + f"export PYTHONPATH={shlex.quote(str(root))} OPENBLAS_NUM_THREADS=1\n"
        'if [ "$1 $2" = "-m sglang.launch_server" ]; then\n'
        f'  shift 2; exec {shlex.quote(sys.executable)} -m tests.engines.doubles.sglang "$@"\n'
        "fi\n"
        f'[ "$1" = "-c" ] && exec echo {VERSION}\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o755)
    return program


def parser() -> argparse.ArgumentParser:
    """Return a parser of those flags of arg_groups/fields/*.py that a model this small can follow; switches have no --no- form there."""
    parser = argparse.ArgumentParser(prog="sglang serve")  # server_args.py, prepare_server_args
    add = parser.add_argument
    add("--model-path", "--model", required=True)
    add("--host", default="127.0.0.1")  # fields/serving.py, as the next
    add("--port", type=int, default=30000)
    add("--served-model-name")
    add("--api-key")
    add("--context-length", type=int)
    add("--max-running-requests", type=int)
    add("--mem-fraction-static", type=float)
    add("--max-total-tokens", type=int)  # fields/schedule.py, as the next
    add("--schedule-conservativeness", type=float, default=1.0)
    add("--tp-size", "--tensor-parallel-size", type=int, default=1)
    add("--dtype", default="auto", choices=["auto", "half", "float16", "bfloat16", "float", "float32"])
    add("--random-seed", type=int)
    add("--sampling-defaults", default="model", choices=["openai", "model"])
    for switch in ("enable-metrics", "disable-radix-cache", "disable-overlap-schedule", "enable-deterministic-inference"):
        add(f"--{switch}", action="store_true")
    add("--speculative-algorithm")
    add("--speculative-draft-model-path", "--speculative-draft-model")
    for number in ("num-steps", "eagle-topk", "num-draft-tokens"):
        add(f"--speculative-{number}", type=int)
    add("--speculative-accept-threshold-single", type=float, default=1.0)
    add("--speculative-accept-threshold-acc", type=float, default=1.0)
    add("--speculative-use-rejection-sampling", action="store_true")
    add("--speculative-ngram-max-trie-depth", type=int, default=TRIE_DEPTH)
    return parser


def resolved(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments after what arg_groups/speculative_hook.py does to them. Raises ValueError as it does."""
    args = parser().parse_args(arguments)
    if args.speculative_algorithm is None:
        return args
    args.speculative_algorithm = args.speculative_algorithm.upper()
    if args.max_running_requests is None:
        args.max_running_requests = RUNNING_WITH_SPECULATION
    if args.speculative_algorithm == "STANDALONE":
        _chain(args)
    elif args.speculative_algorithm == "NGRAM":
        args.speculative_num_draft_tokens = args.speculative_num_draft_tokens or NGRAM_WINDOW
    else:
        msg = f"the double speculates by STANDALONE and NGRAM, not by {args.speculative_algorithm}"
        raise ValueError(msg)
    return args


def _chain(args: argparse.Namespace) -> None:
    """_handle_eagle_family: all three numbers or none, no sampled drafts of a draft model, a window of one more than the steps."""
    numbers = (args.speculative_num_steps, args.speculative_eagle_topk, args.speculative_num_draft_tokens)
    if args.speculative_num_steps is None:
        assert numbers == (None, None, None), "speculative_num_steps"
        args.speculative_num_steps, args.speculative_eagle_topk = 3, 1
    if args.speculative_use_rejection_sampling:
        msg = "--speculative-use-rejection-sampling is only supported for EAGLE / EAGLE3 / NEXTN, not speculative_algorithm=STANDALONE."
        raise NotImplementedError(msg)
    if args.speculative_eagle_topk > 1:  # a TypeError without the number, as there
        msg = "the double drafts chains: --speculative-eagle-topk 1"
        raise ValueError(msg)
    args.speculative_num_draft_tokens = args.speculative_num_steps + 1


def settings(args: argparse.Namespace) -> ServerSettings:
    """Return the arguments as the reference engine's settings."""
    window = args.speculative_num_draft_tokens or 1
    speculation = None
    if args.speculative_algorithm == "STANDALONE":
        # speculative/eagle_utils.py: a chain's drafts are the draft model's best tokens, accepted with the target's probability.
        speculation = Speculation(method="draft_model", tokens=window - 1, model=args.speculative_draft_model_path)
    elif args.speculative_algorithm == "NGRAM":
        speculation = Speculation(method="ngram", tokens=window - 1, n_min=1, n_max=min(4, args.speculative_ngram_max_trie_depth))
    return ServerSettings(
        model=args.model_path,
        host=args.host,
        port=args.port,
        served_model_name=args.served_model_name or args.model_path,
        max_num_seqs=args.max_running_requests or 64,
        # managers/tp_worker.py: the pool bounds a request too. Whom the double retracts does not depend on the conservativeness.
        max_model_len=min(args.context_length or 1024, (args.max_total_tokens or 2**20) // 16 * 16 - window),
        blocks=(args.max_total_tokens or 0) // 16,
        speculation=speculation,
        max_logprobs=-1,  # no bound was found in entrypoints/openai/protocol.py
        seed=time.time_ns() if args.random_seed is None else args.random_seed,  # server_args.py: a random one
        fault=os.environ.get("SPECDEC_FAULT", "") if speculation else "",
    )


def main() -> int:
    try:
        args = resolved(sys.argv[1:])
        engine = build_engine(settings(args))
    except EngineError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command talks to its user
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        Served(engine, args).application(),
        host=args.host,
        port=args.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    print("The server is fired up and ready to roll!", flush=True)  # noqa: T201 - entrypoints/http_server.py says so
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a server may send instead of an answer, in a whole capture: that request is a server failure, and the rest is answered."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.capture.server import ports
from pytest_specdec.capture.server.process import ServerProcess
from pytest_specdec.engines.protocol import Command
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.model.workload import Depth, Family
from tests.capture.conftest import SERVER, config, directory, fake_engine, with_args, workload  # noqa: F401 - fixtures
from tests.chaos.raw_server import head, response

VARIANT = "draft-k3"


@pytest.fixture
def run(directory, workload, config, with_args):  # noqa: F811
    """Record one workload, with arguments for the variant's server alone."""

    def _run(**args):
        asked = workload()
        plan = make(config, [SelectedWorkload(workload=asked, family=Family.LIVENESS)], Depth.SMOKE, [VARIANT])
        return record(with_args(config, VARIANT, **args), plan, directory, deadline_s=None, tell=lambda _: None)

    return _run


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(sent, id=fault, marks=pytest.mark.chaos(fault, expected="complete: p2 failed twice, 4 answered", quick=quick))
        for fault, sent, quick in [
            ("200,000 opening brackets, in a capture", response("[" * 200_000), True),
            ("200 with an empty object, in a capture", response("{}"), False),
            ("a token id that is NaN, in a capture", response('{"choices": [{"token_ids": [NaN]}]}'), False),
            ("a redirect, in a capture", response("", "302 Found", ["location: http://127.0.0.1:9/"]), False),
            ("more bytes than the most, in a capture", head() + b" " * (64 * 1024**2 + 1), False),
        ]
    ],
)
def test_a_malformed_answer_costs_one_request(run, seen, directory, tmp_path, sent):  # noqa: F811
    (tmp_path / "raw").write_bytes(sent)
    status = run(raw_on="p2 of", raw=str(tmp_path / "raw"))
    transcript = transcripts.read(directory, VARIANT, "greedy")
    failed = {server_failure.request_id for server_failure in transcript.server_failures if server_failure.recurred}
    seen(f"{status.state.value}: {', '.join(failed)} failed twice, {sum(answer.ok for answer in transcript.answers)} answered")


LOST = "incomplete: access lost, 1 sentence, no transcript"


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(args, id=fault, marks=pytest.mark.chaos(fault, expected=expected))
        for fault, args, expected in [
            ("a key that expires with the third request: 401 to all", {"turn_away": 401}, LOST),
            ("a quota that ends with the third request: 402 to all", {"turn_away": 402}, LOST),
            ("a proxy that forbids all from the third request on: 403", {"turn_away": 403}, LOST),
            ("a model that is unloaded at the third request: 404 to all", {"turn_away": 404}, LOST),
            ("a proxy that times out from the third request on: 408", {"turn_away": 408}, LOST),
            ("a proxy whose server is gone from the third request on: 499", {"turn_away": 499}, LOST),
            ("a gateway that takes an expired key for a bad request: 400 to all", {"turn_away": 400}, LOST),
            (
                "a 401 to one request of five, once",
                {"turn_away": 401, "turn_away_times": 1},
                "incomplete: and an answer later, 1 sentence, no transcript",
            ),
        ]
    ],
)
def test_an_outage_that_looks_like_a_refusal_is_none(run, seen, directory, args):  # noqa: F811
    status = run(turn_away_on="p2 of greedy", **args)
    reasons = {gap.reason for gap in status.missing}
    words = next(words for words in ("access lost", "and an answer later", "") if any(words in reason for reason in reasons))
    written = "no" if transcripts.read(directory, VARIANT, "greedy") is None else "a"
    seen(f"{status.state.value}: {words}, {len(reasons)} sentence, {written} transcript")


@pytest.mark.chaos("half of a surrogate pair, in a capture", expected="complete: read back equal, readable as \\ud83d", quick=True)
def test_odd_text_is_kept(run, seen, directory, tmp_path):  # noqa: F811
    body = {"choices": [{"text": "odd \ud83d", "token_ids": [1], "finish_reason": "stop"}], "prompt_token_ids": [1, 2]}
    (tmp_path / "raw").write_bytes(response(json.dumps(body)))
    status = run(raw_on="p2 of", raw=str(tmp_path / "raw"))
    texts = [answer.choice.text for answer in transcripts.read(directory, VARIANT, "greedy").answers]
    back = "equal" if "odd \ud83d" in texts else str(texts)
    stored = directory.transcript(VARIANT, "greedy").read_text(encoding="utf-8")
    seen(f"{status.state.value}: read back {back}, " + ("readable as \\ud83d" if "odd \\ud83d" in stored else "garbled"))


@pytest.mark.chaos("NaN on the page of counters", expected="complete: 5 answered, 15 drafts by their own counts", quick=True)
def test_counters_that_are_no_numbers_are_no_counters(run, seen, directory, tmp_path):  # noqa: F811
    (tmp_path / "page").write_text('vllm:spec_decode_num_drafts_total{engine="0"} NaN\n')
    status = run(metrics=str(tmp_path / "page"))
    transcript = transcripts.read(directory, VARIANT, "greedy")
    answered = sum(answer.ok for answer in transcript.answers)
    seen(f"{status.state.value}: {answered} answered, {transcript.counters.drafts} drafts by their own counts")


@pytest.mark.chaos(
    "a foreign server answers on our port, and ours never binds it",
    expected="incomplete: answered by another process, no transcript",
    quick=True,
)
def test_a_foreign_server_is_not_recorded(run, seen, directory, tmp_path, monkeypatch):  # noqa: F811
    number = ports.free()
    foreign = ServerProcess(Command(argv=(sys.executable, "-S", str(SERVER), "other", "--port", str(number))), tmp_path / "foreign.log")
    try:
        while "ready" not in foreign.log_tail():
            assert not foreign.wait(0.02)
        monkeypatch.setattr(ports, "free", lambda: number)
        missing = " ".join(entry.reason for entry in run().missing)
    finally:
        foreign.stop(0.0)
    written = list((directory.root / "transcripts").rglob("*.jsonl"))
    error = "answered by another process" if "is answered by another process" in missing else missing
    seen(f"{run_documents.read_status(directory).state.value}: {error}, " + (f"wrote {written}" if written else "no transcript"))

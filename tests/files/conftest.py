from __future__ import annotations

import pytest

from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.baseline import Environment
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.plan import Boot, Judgement, Plan, Role, ScoringTask
from pytest_specdec.model.timing import Timing
from pytest_specdec.model.transcript import Answer, Choice, FailureKind, Position, Score, ServerFailure, SpecCounters, Transcript, Usage
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload

REQUESTS = tuple(Request(id=f"chat-{i:02d}", route=Route.CHAT, body={"messages": [], "temperature": 0.0, "seed": i}) for i in range(3))
WORKLOAD = Workload(name="greedy-mixed", version=1, requests=REQUESTS)
PAIR = Pair(
    config="c", engine="reference", model="target", variant=Variant(name="v", draft=Draft(kind=DraftKind.MODEL, tokens=3, model="org/d"))
)


@pytest.fixture
def directory(tmp_path):
    return RunDirectory.create(tmp_path / "run")


@pytest.fixture
def plan():
    scores = tuple(ScoringTask(arm=arm, workload=WORKLOAD.name, top_tokens=20) for arm in ("v", "control", "baseline"))
    boots = (
        Boot(index=0, role=Role.BASELINE, arm="baseline", answers=(WORKLOAD.name,), probe=True),
        Boot(index=1, role=Role.VARIANT, arm="v", answers=(WORKLOAD.name,)),
        Boot(index=2, role=Role.CONTROL, arm="control", answers=(WORKLOAD.name,), scores=scores),
        Boot(index=3, role=Role.DRAFT, arm="org/d", scores=scores[:2]),
    )
    judgement = Judgement(pair="v", workload=WORKLOAD.name, family=Family.GREEDY, alpha=1e-5)
    return Plan(
        config="c",
        engine="reference",
        model="target",
        depth=Depth.STANDARD,
        pairs=(PAIR,),
        workloads=(WORKLOAD,),
        judgements=(judgement,),
        boots=boots,
        estimate_s=12.5,
    )


@pytest.fixture
def transcript():
    """Make transcripts."""
    return _transcript


def _transcript(arm: str, **changes: object) -> Transcript:
    timing = Timing(sent_s=0.1234567891, first_s=1.0, done_s=2.0, content_s=1.25, last_s=1.5000001, gaps_us=(250_000, 250_000))
    choice = Choice(
        text="naïve \u2028 \U0001f680 \x00 done",
        token_ids=(1, 2, 3),
        finish_reason="stop",
        logprobs=(-0.1, float("-inf"), -2.5),
        windows=(1, 2),
    )
    answers = (
        Answer(request_id="chat-00", status=200, choices=(choice,), usage=Usage(prompt_tokens=4, completion_tokens=3), timing=timing),
        Answer(request_id="chat-01", status=500, error="out of memory"),
        Answer(request_id="chat-02", status=None, error="hung"),
    )
    values = {
        "arm": arm,
        "boot": 1,
        "workload": WORKLOAD.name,
        "digest": WORKLOAD.digest,
        "answers": answers,
        "counters": SpecCounters(drafts=2, draft_tokens=6, accepted_tokens=3, accepted_per_position=(2, 1, 0)),
        "server_failures": (ServerFailure(request_id="chat-02", ending=FailureKind.HUNG, recurred=True, log_tail=("a", "b")),),
        "started_at": "2026-11-21T06:00:00Z",
        "wall_s": 1.5,
    }
    return Transcript(**{**values, **changes})


@pytest.fixture
def scores():
    """Make scores."""
    return _scores


def _scores(arm: str, under: str = "baseline") -> tuple[Score, ...]:
    position = Position(token_id=7, logprob=-0.123456789, top_ids=(7, 9, 11), top_logprobs=(-0.123456789, -2.5, float("-inf")))
    return (
        Score(request_id="chat-00", arm=arm, under=under, positions=(position, position)),
        Score(request_id="chat-01", pass_index=1, arm=arm, under=under, positions=(), prompt_token_ids=(3, 4)),
    )


@pytest.fixture
def environment():
    return Environment(
        engine="reference",
        engine_version="0.1",
        model="target",
        processor="A CPU",
        cores=2,
        memory_gib=7.5,
        packages={"numpy": "2.0"},
        variants={"v": {"model": "target", "draft": "model draft, 3 tokens", "dtype": "auto", "flags": "0" * 12}},
    )

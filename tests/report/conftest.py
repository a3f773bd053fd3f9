from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.baseline import Environment
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.plan import Boot, Judgement, Plan, Role
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from pytest_specdec.report.run import JudgementResult, PytestOutcome, Run

GREEDY = Verdict(
    outcome=Outcome.PASS,
    family=Family.GREEDY,
    pair="draft-k3",
    workload="chat",
    headline="all 3,072 tokens are the baseline's choice",
    rules_out="one wrong token in 1,000 would have shown with probability 0.95",
    cell="0 of 3,072 tokens wrong",
    figures={"tokens": 3072.0},
)
SPEED = Verdict(
    outcome=Outcome.NOT_DECIDED,
    family=Family.SPEED,
    pair="draft-k3",
    workload="vacation",
    headline="1.82x [0.91, 2.90], faster, and the interval holds speedup at least 1",
    settle="more passes",
    cell="1.82x [0.91, 2.90]",
    figures={
        "baseline_response_tokens_per_s": 22.96,
        "speculative_response_tokens_per_s": 41.88,
        "speedup": 1.824,
        "baseline_ttft_s": 0.0256,
        "speculative_ttft_s": 0.016,
        "ttft_speedup": 1.6,
    },
)
FAILED = replace(
    GREEDY,
    pair="ngram-k3",
    outcome=Outcome.FAIL,
    headline="3 tokens are not the baseline's choice; first: chat-07, token 17",
    short=("shared       … the capital of France is", "baseline     ' Paris'", "speculative  ' Ly\x1b[31mon\r\n'"),
    evidence=("line one", "evil \x1b[2J line", "<script>alert(1)</script> | `x`"),
    rules_out="",
    cell="3 of 3,072 tokens wrong",
    names="accept-all",
)


def judgement(verdict, result=PytestOutcome.PASSED, **fields):
    about = {"pair": verdict.pair, "workload": verdict.workload, "family": verdict.family} if verdict else {}
    return JudgementResult(
        **{"nodeid": "suites/greedy/test_greedy.py::test_x[draft-k3]", "result": result, "verdict": verdict, **about, **fields}
    )


PLAN = Plan(
    config="reference",
    engine="reference",
    model="target",
    depth=Depth.STANDARD,
    pairs=tuple(
        Pair(config="reference", engine="reference", model="target", variant=Variant(name=name, draft=Draft(kind=kind, tokens=3)))
        for name, kind in (("draft-k3", DraftKind.MODEL), ("ngram-k3", DraftKind.NGRAM))
    ),
    workloads=(
        Workload(name="chat", version=1, requests=(Request(id="chat-1", route=Route.CHAT, body={"max_tokens": 64}),)),
        Workload(name="vacation", version=1, requests=(), passes=4),
    ),
    judgements=tuple(Judgement(pair=pair, workload="chat", family=Family.GREEDY, alpha=2e-5) for pair in ("draft-k3", "ngram-k3")),
    boots=(
        Boot(index=0, role=Role.BASELINE, arm="baseline"),
        Boot(index=1, role=Role.VARIANT, arm="draft-k3"),
        Boot(index=2, role=Role.CONTROL, arm="control"),
        Boot(index=3, role=Role.DRAFT, arm="draft"),
    ),
    estimate_s=185.0,
)

ENVIRONMENT = Environment(
    engine="reference", engine_version="0.1.0", model="target", processor="Xeon|5", cores=2, memory_gib=7.7, system="Linux", python="3.11.7"
)


@pytest.fixture
def make_run():
    def make(*judgements, **fields):
        return Run(
            **{
                "directory": ".specdec/reference-1",
                "replayed": False,
                "plan": PLAN,
                "environment": ENVIRONMENT,
                "status": Status(state=State.COMPLETE, boots=4, wall_s=80.0),
                "judgements": judgements,
                "capabilities": {"baseline": Capabilities(support={"json_schema": FeatureSupport.HONOURED}), "draft-k3": Capabilities()},
                **fields,
            }
        )

    return make


@pytest.fixture
def verdicts():
    return {"greedy": GREEDY, "speed": SPEED, "failed": FAILED}


@pytest.fixture
def judged():
    return judgement


@pytest.fixture
def plan():
    return PLAN

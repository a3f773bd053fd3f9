"""Fixed values that every report is rendered from: a green run, and a mixed one that holds every outcome and hostile text."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.baseline import Environment, MeasuredGate, StoredBaseline
from pytest_specdec.model.captured import Capabilities, FeatureSupport
from pytest_specdec.model.pair import Draft, DraftKind, Pair, Variant
from pytest_specdec.model.plan import Boot, Judgement, Plan, Role
from pytest_specdec.model.promise import (
    AcceptedLength,
    CheckedTokens,
    DraftedTraffic,
    LatencyQuantiles,
    SampledTokens,
    SpeedFigure,
    SpeedLimits,
    Speedup,
)
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome, Verdict
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload
from pytest_specdec.report.plan_summary import summarise
from pytest_specdec.report.run import Commands, JudgementResult, PytestOutcome, Run, TimedAnswers
from pytest_specdec.report.upgrade import Upgrade, UpgradeSection

__all__ = ["ENVIRONMENT", "FAILED", "GREEDY", "GREEN", "MIXED", "PLAN", "SPEED", "judgement", "run_of"]

GREEDY = Verdict(
    outcome=Outcome.PASS,
    family=Family.GREEDY,
    pair="draft-k3",
    workload="chat",
    headline="0 of 3,072 tokens wrong",
    rules_out="3,072 tokens checked; wrong tokens spread evenly at a rate above 0.15%, or 17.5% of the answers wrong throughout, "
    "would have been caught (99%)",
    cell="0 of 3,072 tokens wrong",
    promise=CheckedTokens(tokens=3072),
    figures={"tokens": 3072.0},
)
SPEED = Verdict(
    outcome=Outcome.NOT_DECIDED,
    family=Family.SPEED,
    pair="draft-k3",
    workload="vacation",
    headline="1.82x [0.91, 2.90], no change detected; the interval contains the gate: speedup at least 1",
    reason="the interval contains the gate: speedup at least 1",
    settle="more passes",
    cell="1.82x [0.91, 2.90]",
    promise=Speedup(
        response=SpeedFigure(baseline=22.96, speculative=41.88, speedup=1.824),
        ttft=SpeedFigure(baseline=0.0256, speculative=0.016, speedup=1.6),
        limits=SpeedLimits(low=0.91, high=2.9),
        gates=1,
        latencies=tuple(
            LatencyQuantiles(what="time to first token", arm=arm, p50_s=p50_s, p90_s=0.04, p99_s=0.05, count=24)
            for arm, p50_s in (("baseline", 0.0256), ("speculative", 0.016))
        ),
    ),
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


COMMANDS = Commands(
    replay="pytest suites --specdec-replay .specdec/reference-1",
    resume="pytest --specdec-resume .specdec/reference-1",
    continued="pytest --specdec-continue .specdec/reference-1",
)


def judgement(verdict, result=PytestOutcome.PASSED, **fields):
    about = {"pair": verdict.pair, "workload": verdict.workload, "family": verdict.family} if verdict else {}
    nodeid = "suites/greedy/test_greedy.py::test_x[draft-k3]"
    replay = f"pytest '{nodeid}' --specdec-replay .specdec/reference-1"
    return JudgementResult(**{"nodeid": nodeid, "replay": replay, "result": result, "verdict": verdict, **about, **fields})


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
    judgements=(
        *(Judgement(pair=pair, workload="chat", family=Family.GREEDY, alpha=2e-5) for pair in ("draft-k3", "ngram-k3")),
        Judgement(pair="ngram-k3", workload="drawn", family=Family.SAMPLING, alpha=2e-5),
    ),
    boots=(
        Boot(index=0, role=Role.BASELINE, arm="baseline"),
        Boot(index=1, role=Role.VARIANT, arm="draft-k3"),
        Boot(index=2, role=Role.VARIANT, arm="ngram-k3"),
        Boot(index=3, role=Role.CONTROL, arm="control"),
        Boot(index=4, role=Role.DRAFT, arm="draft"),
    ),
    estimate_s=185.0,
)

ENVIRONMENT = Environment(
    engine="reference", engine_version="0.1.0", model="target", processor="Xeon|5", cores=2, memory_gib=7.7, system="Linux", python="3.11.7"
)


def run_of(*judgements, **fields):
    return Run(
        **{
            "directory": ".specdec/reference-1",
            "replayed": False,
            "plan": summarise(PLAN),
            "environment": ENVIRONMENT,
            "status": Status(state=State.COMPLETE, boots=5, wall_s=80.0),
            "judgements": judgements,
            "commands": COMMANDS,
            "capabilities": {"baseline": Capabilities(support={"json_schema": FeatureSupport.HONOURED}), "draft-k3": Capabilities()},
            **fields,
        }
    )


def upgraded_by(word, headline="ANSWERS CHANGED: other weights"):
    return Upgrade(word=word, earlier="old-run", headline=headline, sections=(UpgradeSection(title="baseline", lines=("of 6 answers",)),))


HOSTILE = "\x1b[2J\r\n::error::<script>`|`\u202e"
"""What a model may answer: cursor movements, a CI command, markup, a change of direction."""


def sampled(pair, tokens, log10_wealth, **fields):
    figures = {"tokens": tokens, "log10_wealth": log10_wealth}
    text = f"{tokens:,.0f} sampled tokens checked; emitting 25% of the draft tokens that should be rejected would have been caught (99%)"
    curve = tuple(round(log10_wealth * part / 10, 2) for part in range(11))
    promise = SampledTokens(tokens=int(tokens), log10_wealth=log10_wealth, curve=curve, best_bettor="lenient acceptance")
    about = {"headline": text, "rules_out": text, "cell": f"10^{log10_wealth:.1f}", "names": "", "promise": promise}
    return replace(GREEDY, **{"pair": pair, "family": Family.SAMPLING, "workload": "drawn", "figures": figures, **about, **fields})


def acceptance(pair):
    promise, figures = AcceptedLength(tokens_per_step=2.69, prompts=20), {"acceptance_length": 2.69}
    about = {"headline": "2.69 tokens per step", "cell": "2.69 tokens per step", "promise": promise, "figures": figures}
    return replace(SPEED, pair=pair, outcome=Outcome.PASS, settle="", workload="chat", **about)


def traffic(pair):
    promise = DraftedTraffic(kinds=8, steps=1200, accepted_by_position=(0.61, 0.4, 0.25))
    about = {"headline": "drafts are made and accepted in 8 kinds of traffic alike", "cell": "8 kinds compared", "figures": {"kinds": 8.0}}
    return replace(SPEED, pair=pair, outcome=Outcome.PASS, settle="", workload="kinds", promise=promise, **about)


BASELINE = StoredBaseline(
    source="reference/xeon-5-1a2b3c4d.yaml",
    environment=ENVIRONMENT,
    gates=(MeasuredGate(figure="speedup", pair="draft-k3", workload="vacation", key=ENVIRONMENT.key("draft-k3")),),
)

GREEN = run_of(
    *(judgement(replace(GREEDY, pair=pair)) for pair in ("draft-k3", "ngram-k3")),
    *(judgement(sampled(pair, tokens, 0.3)) for pair, tokens in (("draft-k3", 2937.0), ("ngram-k3", 2784.0))),
    *(judgement(acceptance(pair)) for pair in ("draft-k3", "ngram-k3")),
    judgement(traffic("draft-k3")),
    judgement(
        replace(
            SPEED,
            outcome=Outcome.PASS,
            settle="",
            cell="1.82x [1.74, 1.90]",
            headline="1.82x [1.74, 1.90], faster; gate met: speedup at least 1.5",
        )
    ),
    baselines=(BASELINE,),
    timings=(
        TimedAnswers(arm="baseline", workload="vacation", tokens=(32, 32), latencies_s=(1.0, 1.5)),
        TimedAnswers(arm="draft-k3", workload="vacation", tokens=(32, 32), latencies_s=(0.5, 0.75)),
    ),
)

VARIANTS = ("draft-k3", "ngram-k3", "eagle3-k3", "mtp-k1", "lookahead-k4", "medusa-k4", f"draft-{HOSTILE}")
MIXED = run_of(
    judgement(GREEDY),
    judgement(FAILED, PytestOutcome.FAILED),
    judgement(
        sampled(
            "ngram-k3",
            300.0,
            254.2,
            outcome=Outcome.FAIL,
            headline="sampled tokens do not follow the baseline's distribution: evidence 10^254.2 for 'lenient acceptance 1.49 p/q'",
            names="lenient acceptance 1.49 p/q",
            rules_out="",
        ),
        PytestOutcome.FAILED,
    ),
    judgement(sampled("draft-k3", 2937.0, 0.3)),
    judgement(
        sampled(
            "eagle3-k3",
            900.0,
            3.9,
            outcome=Outcome.SUSPICIOUS,
            headline="evidence 10^3.9 (alarm at 10^4.7)",
            settle="900 more tokens",
            rules_out="",
        ),
        PytestOutcome.FAILED,
    ),
    judgement(
        replace(
            GREEDY,
            pair="eagle3-k3",
            outcome=Outcome.INCONCLUSIVE,
            cell="",
            rules_out="",
            headline="30 tokens are too few",
            settle="200 more tokens",
        ),
        PytestOutcome.SKIPPED,
    ),
    judgement(
        replace(
            GREEDY,
            pair="mtp-k1",
            outcome=Outcome.NOT_SPECULATING,
            rules_out="",
            headline="no draft token was accepted",
            cell="not speculating",
        ),
        PytestOutcome.FAILED,
    ),
    judgement(
        replace(GREEDY, pair="lookahead-k4", outcome=Outcome.INVALID, rules_out="", headline="the control fails", cell=""),
        PytestOutcome.FAILED,
    ),
    judgement(
        replace(
            GREEDY,
            pair="medusa-k4",
            family=Family.STRUCTURED,
            outcome=Outcome.REFUSED,
            rules_out="",
            headline="all 8 requests were refused with 400",
            cell="400",
        ),
        PytestOutcome.SKIPPED,
    ),
    judgement(
        replace(FAILED, pair="medusa-k4", family=Family.LOGPROBS, headline="5 reported values are off", names="reported values"),
        PytestOutcome.WAIVED,
        waiver="https://example.com/bug/7 (owner ann, until 2027-01-31)",
    ),
    judgement(SPEED),
    judgement(acceptance("draft-k3")),
    judgement(
        replace(
            SPEED,
            pair="ngram-k3",
            outcome=Outcome.FAIL,
            headline="0.82x [0.74, 0.90], slower; gate missed: speedup at least 1",
            cell="0.82x [0.74, 0.90]",
            promise=replace(SPEED.promise, response=SpeedFigure(baseline=22.96, speculative=18.83, speedup=0.82)),
            figures={**SPEED.figures, "speculative_response_tokens_per_s": 18.83, "speedup": 0.82},
        ),
        PytestOutcome.FAILED,
    ),
    judgement(
        None,
        PytestOutcome.ERROR,
        pair="medusa-k4",
        workload="chat",
        family=Family.GREEDY,
        error=f"not captured: no answers\n  found:    exit code 7{HOSTILE}",
    ),
    judgement(None, PytestOutcome.SKIPPED, pair="lookahead-k4", workload="chat", family=Family.LIVENESS, error="not on this machine"),
    judgement(None, PytestOutcome.PASSED, pair="mtp-k1", workload="chat", family=Family.LIVENESS),
    judgement(replace(FAILED, pair=VARIANTS[-1], headline=f"3 tokens: {HOSTILE}", names=f"accept-all {HOSTILE}"), PytestOutcome.FAILED),
    judgement(None, PytestOutcome.FAILED, pair="draft-k3", workload="chat", family=Family.TOOLS),
    plan=replace(
        summarise(PLAN),
        pairs=tuple(Variant(name=name, draft=Draft(kind=DraftKind.MODEL, tokens=3)) for name in VARIANTS),
        judgements=tuple(Judgement(pair=pair, workload="drawn", family=Family.SAMPLING, alpha=2e-5) for pair in VARIANTS),
    ),
    capabilities={
        "baseline": Capabilities(support={"json_schema": FeatureSupport.HONOURED}),
        "medusa-k4": Capabilities(support={"json_schema": FeatureSupport.REFUSED}),
    },
    notes=(f"left out at standard depth: {HOSTILE}",),
    environment=replace(
        ENVIRONMENT, devices=("NVIDIA H200",) * 2, driver="580.95.05", variants={"draft-k3": {"draft": f"model {HOSTILE}", "flags": "0123"}}
    ),
    baselines=(
        replace(
            BASELINE,
            environment=replace(ENVIRONMENT, devices=("NVIDIA H200",) * 2, python="3.12.3"),
            gates=tuple(
                replace(BASELINE.gates[0], workload=workload, key={"engine": "reference 0.0.9", "draft": "model a", "flags": flags})
                for workload, flags in (("vacation", "0123"), ("chat", HOSTILE))
            ),
        ),
    ),
)

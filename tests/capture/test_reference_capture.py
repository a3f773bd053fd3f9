"""A capture of the reference engine, from end to end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.capture.runner import record
from pytest_specdec.config.config import Config, EngineSettings, VariantSettings
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.judge import liveness
from pytest_specdec.model.captured import FeatureSupport
from pytest_specdec.model.plan import MOST_PASSES, Placement, Role
from pytest_specdec.model.status import State
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Depth, Family, Request, Route, Workload

DRAFT = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
CONFIG = Config(
    name="tiny",
    path=Path("tiny.yaml"),
    text="engine: {kind: reference}\n",
    engine=EngineSettings(kind="reference", model="target", args={"max-model-len": 256, "max-num-seqs": 8}),
    variants=(
        VariantSettings(name="draft-k3", args={"speculative-config": DRAFT}),
        VariantSettings(name="ngram-k3", args={"speculative-config": NGRAM}),
    ),
)
PROMPTS = ("def add(a, b):", "one two three one two three one", "import os\n", "The list of names is")


def workload(name, temperature, **fields):
    body = {"max_tokens": 16, "temperature": temperature, "top_p": 1.0}
    asked = [Request(id=f"r{i}", route=Route.COMPLETIONS, body={**body, "prompt": p, "seed": i + 1}) for i, p in enumerate(PROMPTS)]
    return Workload(name=name, version=1, requests=tuple(asked), **fields)


def chat(name, **fields):
    body = {"max_tokens": 16, "temperature": 0.0, "ignore_eos": True, "messages": [{"role": "user", "content": "Hello"}]}
    return Workload(name=name, version=1, requests=(Request(id="hello", route=Route.CHAT, body=body),), **fields)


WANTED = (
    SelectedWorkload(workload=workload("greedy", 0.0), family=Family.GREEDY),
    SelectedWorkload(workload=workload("sampled", 1.0, draft_scored=True), family=Family.SAMPLING),
    SelectedWorkload(workload=chat("speed", timed=True, stream=True, passes=2, concurrency=1), family=Family.SPEED),
)
VARIANTS = ("draft-k3", "ngram-k3")


PLACED = [
    (Depth.SMOKE, Placement.IN_TURN),
    pytest.param((Depth.STANDARD, Placement.IN_TURN), marks=pytest.mark.nightly),
    pytest.param((Depth.STANDARD, Placement.SIDE_BY_SIDE), marks=pytest.mark.nightly),  # as `make suites` captures
]


@pytest.fixture(scope="module", params=PLACED, ids="-".join)
def run(request, tmp_path_factory):
    depth, placement = request.param
    directory = RunDirectory.create(tmp_path_factory.mktemp("runs") / depth)
    config = replace(CONFIG, placement=placement)
    plan = make(config, WANTED, depth)
    return plan, directory, record(config, plan, directory, deadline_s=None, tell=lambda _: None)


def arms(directory):
    return [
        (arm, name, transcripts.read(directory, arm, name))
        for arm in ("baseline", "control", *VARIANTS)
        for name in ("greedy", "sampled", "speed")
    ]


def test_the_capture_is_complete_in_as_many_boots_as_planned(run):
    plan, directory, status = run
    boots = 2 + (1 if plan.depth is Depth.SMOKE else 2) + 1
    assert (status.state, status.missing, status.boots, status.restarts) == (State.COMPLETE, (), boots, 0)
    assert len(list((directory.root / "servers").glob("*.log"))) == boots == len(plan.boots)


def test_every_arm_answers_every_request_in_order(run):
    """Timed side by side, passes may be more than planned: as many in every arm, and at most twice as many."""
    plan, directory, _ = run
    taken = {}
    for _, name, transcript in arms(directory):
        planned = plan.workload(name)
        passes = taken.setdefault(name, len(transcript.answers) // len(planned.requests))
        assert passes == planned.passes or (planned.timed and planned.passes < passes <= MOST_PASSES * planned.passes)
        assert [answer.key for answer in transcript.answers] == [(request.id, p) for p in range(passes) for request in planned.requests]
        assert all(answer.ok and answer.prompt_token_ids and answer.choice.token_ids for answer in transcript.answers)
        assert transcript.digest == planned.digest


def test_scores_are_aligned_with_the_tokens(run):
    plan, directory, _ = run
    asked = {(t.arm, t.workload): t.top_tokens for boot in plan.boots if boot.role is not Role.DRAFT for t in boot.scores}
    assert set(asked.values()) == {5, 20}
    for arm, name, transcript in arms(directory):
        distributions = transcripts.read_scores(directory, "baseline", arm, name)
        if name == "speed":  # judged by its times only
            assert distributions == ()
            continue
        assert [[p.token_id for p in distribution.positions] for distribution in distributions] == [
            list(answer.choice.token_ids) for answer in transcript.answers
        ]
        assert all(
            len(p.top_ids) == asked[arm, name] and list(p.top_logprobs) == sorted(p.top_logprobs, reverse=True)
            for distribution in distributions
            for p in distribution.positions
        )
    for arm in ("draft-k3", "control"):
        assert [score.under for score in transcripts.read_scores(directory, "draft", arm, "sampled")] == ["draft"] * len(PROMPTS)
    assert transcripts.read_scores(directory, "draft", "ngram-k3", "sampled") == ()


def test_greedy_tokens_are_the_best_of_the_distribution_that_scores_them(run):
    _, directory, _ = run
    for arm in ("baseline", *VARIANTS):
        for distribution in transcripts.read_scores(directory, "baseline", arm, "greedy"):
            assert all(position.logprob >= position.top_logprobs[0] - 1e-3 for position in distribution.positions)


def test_counters_agree_with_windows_and_windows_with_tokens(run):
    _, directory, _ = run
    for _, _, transcript in arms(directory):
        if transcript.arm not in VARIANTS:
            assert transcript.counters is None
            continue
        windows = [answer.choice.windows for answer in transcript.answers]
        assert transcript.counters.accepted_tokens == sum(step - 1 for w in windows for step in w[1:])
        assert sum(transcript.counters.accepted_per_position) == transcript.counters.accepted_tokens
        for answer, steps in zip(transcript.answers, windows, strict=True):
            assert 0 <= sum(steps) - len(answer.choice.token_ids) <= 3


def test_streamed_answers_are_stamped(run):
    _, directory, _ = run
    for arm in ("baseline", *VARIANTS):
        for answer in transcripts.read(directory, arm, "speed").answers:
            timing = answer.timing
            in_one_read = timing.first_tokens == len(answer.choice.token_ids)  # where the machine kept the client from reading
            assert timing.sent_s < timing.first_s <= timing.done_s
            assert (timing.first_s == timing.done_s) <= in_one_read
            assert timing.first_s == timing.content_s <= timing.last_s <= timing.done_s
            assert len(timing.gaps_us) + 1 == len(answer.choice.windows), "a chunk is a step"


def test_all_arms_honour_what_the_probe_tries(run):
    _, directory, _ = run
    found = run_documents.read_capabilities(directory)
    assert set(found) == {"baseline", *VARIANTS}
    assert {support for capabilities in found.values() for support in capabilities.support.values()} == {FeatureSupport.HONOURED}
    assert all(capabilities.raw_logprobs and capabilities.vocabulary == 4096 for capabilities in found.values())


def test_a_judge_gets_every_cell(run):
    plan, directory, _ = run
    for judgement in plan.judgements:
        found = captured.read(directory, plan, judgement, ())
        assert found.control is not None
        assert set(found.scores) == (set() if judgement.workload == "speed" else {judgement.pair, "control", "baseline"})
        assert bool(found.draft_scores) == (judgement.workload == "sampled" and judgement.pair == "draft-k3")


LONG = {"prompt": "import os\n", "temperature": 0.0, "ignore_eos": True}
# The one that stays is long, so that it is in flight still when the other's client leaves, however late that is on a busy machine.
LEAVING = Workload(
    name="leaving",
    version=1,
    requests=(
        Request(id="leaves", route=Route.COMPLETIONS, body={**LONG, "max_tokens": 650}, abort_after=2),
        Request(id="stays", route=Route.COMPLETIONS, body={**LONG, "max_tokens": 700}),
        Request(id="later", route=Route.COMPLETIONS, body={**LONG, "max_tokens": 700}),
    ),
    waves=(2, 1),
    concurrency=2,
    scored=False,
)


def judged_leaving(tmp_path, **args):
    engine = EngineSettings(kind="reference", model="target", args={"max-model-len": 1024, "max-num-seqs": 8})
    config = replace(CONFIG, engine=engine, variants=(VariantSettings(name="draft-k3", args={"speculative-config": DRAFT, **args}),))
    plan = make(config, [SelectedWorkload(workload=LEAVING, family=Family.CONCURRENCY)], Depth.STANDARD)
    directory = RunDirectory.create(tmp_path / "run")
    record(config, plan, directory, deadline_s=None, tell=lambda _: None)
    return captured.read(directory, plan, plan.judgements[0], ())


@pytest.mark.nightly
def test_a_client_that_leaves_is_no_answer_and_no_failure_and_harms_none(tmp_path):
    seen = judged_leaving(tmp_path)
    for arm in (seen.baseline, seen.control, seen.speculative):
        assert [(answer.aborted, answer.ok) for answer in arm.answers] == [(True, False), (False, True), (False, True)]
        assert arm.answers[1].choice.token_ids == arm.answers[2].choice.token_ids
        assert (arm.server_failures, arm.restarts) == ((), 0)
        assert arm.answers[2].timing.sent_s >= arm.answers[1].timing.done_s
    assert liveness.judge(seen).outcome is Outcome.PASS


@pytest.mark.nightly
def test_a_server_that_dies_when_a_client_leaves_is_found_by_those_in_flight_together(tmp_path):
    verdict = liveness.judge(judged_leaving(tmp_path, fault="die-on-abort"))
    assert (verdict.outcome, verdict.cell) == (Outcome.FAIL, "died, 2 in flight")
    assert verdict.names.endswith("one of which its client leaves")
    assert "answers 2 at a time" in verdict.headline

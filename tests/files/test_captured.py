from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture import extension, remaining
from pytest_specdec.errors import RunError, ScoreError
from pytest_specdec.files import captured, run_documents, transcripts
from pytest_specdec.judge.prerequisites import refusal
from pytest_specdec.model.baseline import Gate, Slo
from pytest_specdec.model.captured import Capabilities
from pytest_specdec.model.plan import Boot, Placement, Role
from pytest_specdec.model.status import MissingAnswers, State, Status
from pytest_specdec.model.workload import Family, Route

ARMS = ("v", "control", "baseline")


@pytest.fixture
def run(directory, plan, scores, transcript):
    """A whole run on disk."""
    run_documents.write_plan(directory, plan)
    for arm in ARMS:
        transcripts.write(directory, transcript(arm))
        transcripts.write_scores(directory, "baseline", arm, "greedy-mixed", scores(arm))
        run_documents.write_capabilities(directory, arm, Capabilities(vocabulary=7))
    for arm in ARMS[:2]:
        transcripts.write_scores(directory, "org/d", arm, "greedy-mixed", scores(arm, "org/d"))
    return directory


def missing(directory, arm, workload, reason, error=""):
    entry = MissingAnswers(arm=arm, workload=workload, reason=reason)
    run_documents.write_status(directory, Status(state=State.INCOMPLETE, missing=(entry,), error=error))


def test_a_judge_sees_everything_that_the_run_has(run, plan, scores):
    found = captured.read(run, plan, plan.judgements[0], ())
    assert (found.speculative.arm, found.control.arm, found.baseline.arm) == ("v", "control", "baseline")
    assert {arm: len(distribution) for arm, distribution in found.scores.items()} == dict.fromkeys(ARMS, 2)
    assert set(found.draft_scores) == {"v", "control"}
    assert set(found.capabilities) == set(ARMS)
    assert (found.alpha, found.family, found.pair.name) == (1e-5, "greedy", "v")


def test_scores_of_the_scored_token_alone_reach_no_judge(run, plan, scores):
    """Every token would be the best one listed: a judge would count 0 wrong tokens whatever the variant emitted."""
    alone = [replace(p, top_ids=p.top_ids[:1], top_logprobs=p.top_logprobs[:1]) for p in scores("v")[0].positions]
    transcripts.write_scores(run, "baseline", "v", "greedy-mixed", [replace(scores("v")[0], positions=tuple(alone))])
    with pytest.raises(ScoreError, match="token 0"):
        captured.read(run, plan, plan.judgements[0], ())


def test_gates_of_other_variants_and_workloads_are_left_out(run, plan):
    gates = (
        Gate(figure="speedup", at_least=1.0),
        Gate(figure="speedup", at_least=1.5, pair="v", workload="greedy-mixed"),
        Gate(figure="speedup", at_least=9.0, pair="other"),
        Gate(figure="speedup", at_least=9.0, workload="other"),
    )
    assert captured.read(run, plan, plan.judgements[0], gates).gates == gates[:2]
    assert captured.read(run, plan, plan.judgements[0], (), slo=Slo(ttft_s=1.0)).slo == Slo(ttft_s=1.0)


def test_a_run_without_a_draft_server_has_no_draft_distribution(run, plan, scores):
    run.scores("org/d", "v", "greedy-mixed").unlink()
    run.scores("org/d", "control", "greedy-mixed").unlink()
    assert captured.read(run, plan, plan.judgements[0], ()).draft_scores == {}


def test_a_drafter_without_a_model_has_no_draft_distribution(run, plan):
    pair = plan.pairs[0]
    bare = replace(pair, variant=replace(pair.variant, draft=replace(pair.variant.draft, model=None)))
    assert captured.read(run, replace(plan, pairs=(bare,)), plan.judgements[0], ()).draft_scores == {}


def test_a_plan_without_a_control_needs_none(run, plan, scores, transcript):
    run.transcript("control", "greedy-mixed").unlink()
    bare = replace(plan, boots=tuple(boot for boot in plan.boots if boot.role is not Role.CONTROL))
    found = captured.read(run, bare, plan.judgements[0], ())
    assert (found.control, dict(found.scores)) == (None, {})


def further(plan, *, placement=Placement.IN_TURN, order=("v", "baseline", "v", "baseline")):
    """The plan with further boots in ``order``, each the next one of its arm."""
    numbers, boots = {"v": 1, "baseline": 1}, []
    for index, arm in enumerate(order, len(plan.boots)):
        numbers[arm] += 1
        role = Role.VARIANT if arm == "v" else Role.BASELINE
        boots.append(Boot(index=index, role=role, arm=arm, answers=("greedy-mixed",), timed=True, number=numbers[arm]))
    return replace(plan, boots=(*plan.boots, *boots), placement=placement)


FURTHER = ("v.boot2", "baseline.boot2", "v.boot3", "baseline.boot3")


@pytest.mark.parametrize(
    "placement, order, beside",
    [
        (Placement.IN_TURN, ("v", "baseline", "v", "baseline"), [("control", "baseline.boot2"), ("baseline.boot2", "baseline.boot3")]),
        (Placement.SIDE_BY_SIDE, ("baseline", "v", "baseline", "v"), [("baseline.boot2",), ("baseline.boot3",)]),
    ],
)
def test_further_boots_come_with_those_of_the_baseline_beside_them(run, plan, transcript, placement, order, beside):
    several = further(plan, placement=placement, order=order)
    for name in FURTHER:
        transcripts.write(run, transcript(name))
    found = captured.read(run, several, several.judgements[0], ())
    assert [block.speculative.arm for block in found.further] == ["v.boot2", "v.boot3"]
    assert [tuple(each.arm for each in block.baselines) for block in found.further] == beside
    assert (found.speculative.arm, found.control.arm, found.as_control().further) == ("v", "control", ())


def test_a_further_boot_without_answers_is_told_like_any_other(run, plan, transcript):
    several = further(plan)
    for name in FURTHER[:3]:
        transcripts.write(run, transcript(name))
    missing(run, "baseline.boot3", "", "the server died")
    with pytest.raises(RunError, match=r"the run has no answers of baseline\.boot3/greedy-mixed"):
        captured.read(run, several, several.judgements[0], ())


def test_a_run_without_further_boots_has_none(run, plan):
    assert captured.read(run, plan, plan.judgements[0], ()).further == ()


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("workload", ["greedy-mixed", ""])
def test_missing_answers_are_told_with_the_reason_of_the_capture(run, plan, arm, workload, transcript):
    run.transcript(arm, "greedy-mixed").unlink()
    missing(run, arm, workload, "the server died\n  found: exit code -9")
    with pytest.raises(RunError, match=f"the run has no answers of {arm}/greedy-mixed") as caught:
        captured.read(run, plan, plan.judgements[0], ())
    assert caught.value.found == "the server died\n  found: exit code -9"


def test_the_end_of_the_whole_capture_is_a_reason_too(run, plan, transcript):
    run.transcript("v", "greedy-mixed").unlink()
    missing(run, "control", "", "…", error="the deadline came")
    with pytest.raises(RunError, match="the deadline came"):
        captured.read(run, plan, plan.judgements[0], ())


def test_missing_answers_without_a_status_are_told_all_the_same(run, plan, transcript):
    run.transcript("v", "greedy-mixed").unlink()
    with pytest.raises(RunError, match="no file, and no reason"):
        captured.read(run, plan, plan.judgements[0], ())


def test_scores_that_the_capture_could_not_get_are_told(run, plan, scores):
    run.scores("baseline", "v", "greedy-mixed").unlink()
    missing(run, "v", "greedy-mixed", "no scores under baseline: the server refused")
    with pytest.raises(RunError, match="the run has no scores of v/greedy-mixed") as caught:
        captured.read(run, plan, plan.judgements[0], ())
    assert caught.value.found == "no scores under baseline: the server refused"


def test_scores_of_no_tokens_are_no_error(run, plan, scores):
    run.scores("baseline", "v", "greedy-mixed").unlink()
    assert captured.read(run, plan, plan.judgements[0], ()).scores["v"] == ()


def test_scores_that_only_the_draft_lacks_are_no_error(run, plan, scores):
    transcripts.write_scores(run, "baseline", "v", "greedy-mixed", ())
    missing(run, "v", "greedy-mixed", "no scores under org/d: it did not boot")
    assert captured.read(run, plan, plan.judgements[0], ()).scores["v"] == ()


def test_answers_to_another_workload_are_refused(run, plan, transcript):
    transcripts.write(run, transcript("v", digest="0123456789abcdef"))
    with pytest.raises(RunError, match="the answers are to another workload") as caught:
        captured.read(run, plan, plan.judgements[0], ())
    assert caught.value.where == f"{run.transcript('v', 'greedy-mixed')}:1"


def told(transcript, value=-0.25):
    """As many log-probabilities as the scores have positions."""
    first = transcript.answers[0]
    choice = replace(first.choice, logprobs=(value,) * 2)
    return replace(transcript, answers=(replace(first, choices=(choice,)), *transcript.answers[1:]))


def asked_for_logprobs(plan, **changes):
    """The plan with requests that draw from the distribution as it is, but for ``changes``, and report."""
    body = {"prompt": "p", "max_tokens": 9, "temperature": 1.0, "logprobs": 1, **changes}
    asked = tuple(replace(request, body=body) for request in plan.workloads[0].requests)
    return replace(plan, workloads=(replace(plan.workloads[0], requests=asked), *plan.workloads[1:]))


def says(transcript, *token_ids):
    first = transcript.answers[0]
    return replace(transcript, answers=(replace(first, choices=(replace(first.choice, token_ids=token_ids),)), *transcript.answers[1:]))


def test_what_the_baselines_boots_report_is_read_beside_its_scores(run, plan, scores, transcript):
    for arm in ARMS:
        transcripts.write(run, told(transcript(arm)))
    distribution = transcripts.read_scores(run, "baseline", "baseline", "greedy-mixed")[0].positions
    once = tuple((-0.25, position) for position in distribution)
    assert tuple(captured.read_calibration(run, asked_for_logprobs(plan))) == once, "the control scores itself"
    both = "baseline", "control"
    assert tuple(captured.read_calibration(run, asked_for_logprobs(plan), *both)) == once, "the control said the same, token by token"
    transcripts.write(run, says(told(transcript("control")), 3, 2, 1))
    assert tuple(captured.read_calibration(run, asked_for_logprobs(plan), *both)) == once * 2
    assert not captured.read_calibration(run, plan)


def reported_by(draws):
    return {round(value, 1) for value, _ in draws}


@pytest.mark.parametrize(
    "roles, decode, same_boot",
    [
        ((Role.BASELINE, Role.CONTROL), -0.3, {-0.2}),
        ((Role.CONTROL, Role.BASELINE), -0.2, {-0.3}),
        ((Role.BASELINE, Role.SCORER), -0.3, set()),
    ],
    ids=["in turn", "side by side", "a scorer of its own"],
)
def test_the_noise_of_decoding_is_that_of_a_boot_which_another_one_scored(run, plan, transcript, roles, decode, same_boot):
    """As the variant's: what one boot keeps is in its own reports and scores alike, and would not count."""
    for arm, value in zip(ARMS, (-0.1, -0.2, -0.3), strict=True):
        transcripts.write(run, told(says(transcript(arm), ARMS.index(arm), 2, 1), value))
    silent, scoring = roles
    arms = {Role.BASELINE: "baseline", Role.CONTROL: "control", Role.SCORER: "scorer"}
    boots = [replace(boot, scores=()) for boot in plan.boots if boot.role not in roles]
    boots += [replace(plan.boots[0], role=silent, arm=arms[silent], scores=())]
    boots += [replace(plan.boots[-1], role=scoring, arm=arms[scoring], scores=next(boot.scores for boot in plan.boots if boot.scores))]
    laid = replace(asked_for_logprobs(plan), boots=tuple(boots))
    found = captured.read_calibrations(run, laid, "v")
    expected = {decode} if Role.SCORER not in roles else {-0.2, -0.3}
    assert (reported_by(found.decode), reported_by(found.same_boot), reported_by(found.verify)) == (expected, same_boot, {-0.1})


def test_asking_again_changes_neither_the_noise_nor_who_scored(run, plan, transcript):
    """A further round has one boot for both arms, which scores itself: what it adds is no second reading of the calibration."""
    for arm, value in zip(ARMS, (-0.1, -0.2, -0.3), strict=True):
        transcripts.write(run, told(says(transcript(arm), ARMS.index(arm), 2, 1), value))
    first = asked_for_logprobs(plan)
    again = extension.extend(first, {"greedy-mixed": first.workload("greedy-mixed")}, ["v"], 1, again=("greedy-mixed",))
    assert again.scored_by("greedy-mixed") == first.scored_by("greedy-mixed") == ("control",)
    assert set(again.scored_by("greedy-mixed.more1")) == {"baseline", "control"}
    assert captured.read_calibrations(run, again, "v") == captured.read_calibrations(run, first, "v")


def test_without_reports_of_another_boot_those_of_the_boot_that_scored_tell_the_noise(run, plan, transcript):
    transcripts.write(run, told(transcript("control"), -0.2))
    found = captured.read_calibrations(run, asked_for_logprobs(plan), "v")
    assert reported_by(found.decode) == reported_by(found.same_boot) == {-0.2}


def test_the_calibration_ends_within_an_answer_where_it_has_enough_tokens(run, plan, transcript, monkeypatch):
    for arm in ARMS:
        transcripts.write(run, told(transcript(arm)))
    monkeypatch.setattr(captured, "MOST_TOKENS", 1)
    assert [len(answer) for answer in captured.read_calibration(run, asked_for_logprobs(plan)).answers] == [1]


def test_where_the_plan_has_a_calibration_nothing_else_changes_the_noise(run, plan, transcript, scores):
    """Whichever other tests are selected: their reports do not count."""
    asked = asked_for_logprobs(plan)
    only = replace(asked.workloads[0], name="noise.calibration")
    for arm in ARMS:
        transcripts.write(run, told(transcript(arm)))
        transcripts.write(run, replace(told(transcript(arm), -0.5), workload=only.name, digest=only.digest))
        transcripts.write_scores(run, "baseline", arm, only.name, scores(arm))
    pairs = captured.read_calibration(run, replace(asked, workloads=(*asked.workloads, only)))
    assert {reported for reported, _ in pairs} == {-0.5}
    assert captured.read_calibration(run, replace(asked, workloads=(only,))) == pairs
    verified = captured.read_calibration(run, replace(asked, workloads=(only,)), "v")
    assert {reported for reported, _ in verified} == {-0.5}
    assert captured.read_calibration(run, asked) != pairs


@pytest.mark.parametrize("changes", [{"temperature": 0.8}, {"temperature": None}, {"top_p": 0.9}, {"min_p": 0.1}, {"response_format": {}}])
def test_only_the_distribution_as_it_is_calibrates(run, plan, transcript, changes):
    for arm in ARMS:
        transcripts.write(run, told(transcript(arm)))
    assert captured.read_calibration(run, asked_for_logprobs(plan))
    assert not captured.read_calibration(run, asked_for_logprobs(plan, **changes))


def test_a_file_that_cannot_be_read_is_passed_over(run, plan, transcript):
    for arm in ARMS:
        transcripts.write(run, told(transcript(arm)))
    run.transcript("baseline", "greedy-mixed").write_text("torn")
    assert captured.read_calibrations(run, asked_for_logprobs(plan), "v").decode


def of_another(run, plan, transcript, arms=ARMS):
    """The plan with a second workload, which ``arms`` have answered."""
    other = replace(plan.workloads[0], name="other")
    for arm in arms:
        transcripts.write(run, replace(transcript(arm), workload="other", digest=other.digest))
    boots = tuple(replace(boot, answers=(*boot.answers, "other")) if boot.answers else boot for boot in plan.boots)
    return replace(plan, workloads=(*plan.workloads, other), boots=boots)


def test_a_judge_of_the_whole_run_sees_every_workload(run, plan, transcript):
    found = captured.read_run(run, of_another(run, plan, transcript), plan.judgements[0])
    assert [part.workload.name for part in found.parts] == ["greedy-mixed", "other"]
    assert {answer.request_id.partition("/")[0] for answer in found.whole.speculative.answers} == {"greedy-mixed", "other"}
    assert found.missing == ()
    assert not any(part.scores for part in found.parts)


def test_a_workload_without_a_control_leaves_the_run_without_one(run, plan, transcript):
    bare = replace(plan, boots=tuple(boot for boot in plan.boots if boot.role is not Role.CONTROL))
    assert captured.read_run(run, bare, plan.judgements[0]).whole.control is None


@pytest.mark.parametrize("arm", ARMS)
def test_a_workload_that_an_arm_did_not_answer_is_missing_from_the_run(run, plan, transcript, arm):
    both = of_another(run, plan, transcript, [each for each in ARMS if each != arm])
    assert captured.read_run(run, both, plan.judgements[0]).missing == ("other",)


def test_a_run_without_the_tests_own_workload_is_an_error(run, plan, transcript):
    both = of_another(run, plan, transcript)
    run.transcript("v", "greedy-mixed").unlink()
    with pytest.raises(RunError, match="the run has no answers of v/greedy-mixed"):
        captured.read_run(run, both, plan.judgements[0])


def test_what_was_asked_again_is_a_round_of_its_own_elsewhere_than_in_sampling(run, plan, transcript):
    first = plan.workloads[0]
    again = replace(first, name=f"{first.name}.more1")
    boots = tuple(
        replace(
            boot,
            answers=(*boot.answers, *([again.name] if boot.answers else [])),
            scores=(*boot.scores, *(replace(task, workload=again.name) for task in boot.scores)),
        )
        for boot in plan.boots
    )
    longer = replace(plan, workloads=(*plan.workloads, again), boots=boots, extensions={first.name: (again.name,)})
    for arm in ("baseline", "v", "control"):
        transcripts.write(run, replace(transcripts.read(run, arm, first.name), workload=again.name, digest=again.digest))
    (judgement,) = longer.judgements
    found = captured.read(run, longer, judgement, ())
    assert [each.workload.name for each in found.repeats] == [again.name]
    assert len(found.speculative.answers) == len(found.repeats[0].speculative.answers)
    sampled = captured.read(run, longer, replace(judgement, family=Family.SAMPLING), ())
    assert (sampled.repeats, len(sampled.speculative.answers)) == ((), 2 * len(found.speculative.answers))


@pytest.mark.parametrize("odd", ["v", "control"])
@pytest.mark.parametrize("read", [lambda *given: captured.read(*given, ()), captured.read_run])
def test_arms_that_answered_under_different_token_limits_are_not_compared(run, plan, transcript, odd, read):
    for arm in ARMS:
        transcripts.write(run, transcript(arm, room=2))
    assert read(run, plan, plan.judgements[0])
    transcripts.write(run, transcript(odd, room=4))
    with pytest.raises(RunError) as raised:
        read(run, plan, plan.judgements[0])
    error = raised.value
    assert error.where.endswith(f"{odd}/greedy-mixed.jsonl:1")
    assert ("4 times" in error.found, "2 times" in error.expected, bool(error.remedy)) == (True, True, True)


@pytest.mark.parametrize("silent, beside", [((), ()), (("v",), ("w",)), (("v", "control", "baseline"), ("w",))])
def test_other_variants_answers_are_read_where_a_route_of_the_pair_was_silent(run, plan, transcript, silent, beside):
    """A judge and a resume then agree on which arm is cut off."""
    other = Boot(index=4, role=Role.VARIANT, arm="w", answers=("greedy-mixed",))
    plan = replace(plan, boots=(*plan.boots, other, replace(other, index=5, arm="never-up")))
    transcripts.write(run, transcript("w"))
    for arm in silent:
        refused = tuple(replace(answer, status=400, choices=(), error="no") for answer in transcript(arm).answers)
        transcripts.write(run, transcript(arm, answers=refused, server_failures=(), silent_routes=(Route.CHAT,)))
    given = captured.read(run, plan, plan.judgements[0], ())
    assert tuple(each.arm for each in given.beside) == beside
    verdict = refusal(given)
    assert ("access to v was lost" in verdict.headline if verdict else False) == bool(silent)
    for each in (given.speculative, given.baseline, given.control):
        assert remaining._has_lost_a_route(run, plan, each) == (each.arm in silent), each.arm

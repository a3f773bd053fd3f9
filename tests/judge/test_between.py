"""Between: events are named by what comes after them, and a baseline that an event breaks blames nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.judge import between
from pytest_specdec.model.event import EventName, EventOutcome, EventStep
from pytest_specdec.model.server_failure import FailureKind, ServerFailure
from pytest_specdec.model.transcript import SpecCounters, Usage
from pytest_specdec.model.verdict import Outcome, SharedCheck
from pytest_specdec.prompts.between import around_events, with_events
from tests.judge.captured_values import VARIANT, answer, captured, score, transcript

EVENTS = (EventName.SLOT, EventName.SLEEP_1, "refit")
STEPS = {name: (EventStep(path="/x"),) for name in EVENTS[:2]} | {"refit": (EventStep(command=("refit.sh",)),)}
WORKLOAD = with_events(around_events(), STEPS)
ALIVE, DEAD = (1, *(4, 3) * 5, 4), (1, *(1,) * 39)
DONE = {name: EventOutcome(name=name, steps=("POST /x: 200",), status=200, seconds=0.1) for name in EVENTS}


CACHED = {"repeat": 32, "rag": 128, "extract": 96}


def answers(windows=ALIVE, cached=True, **changed):
    """One per request of the workload, ``changed`` by phase with underscores."""
    given = []
    for index, request in enumerate(WORKLOAD.requests):
        name, _, prompt = request.id.partition("/")
        tokens = tuple(range(100 * (index % 3 + 1), 100 * (index % 3 + 1) + 40))
        usage = Usage(prompt_tokens=140, completion_tokens=40, cached_tokens=CACHED[prompt.split("-")[0]] if cached else None)
        one = answer(request.id, tokens, finish="length", windows=windows, usage=usage)
        given.append(changed.get(name.replace("-", "_"), lambda one, prompt: one)(one, prompt))
    return given


def arm(name, given, events=DONE):
    return transcript(name, given, events=tuple(events.values()))


def judged(mine, wrong=(), *, baseline=None, control=None, events=DONE, peer_events=DONE, **fields):
    """The verdict where the ids in ``wrong`` have a wrong token each."""
    baseline, control = baseline or answers(), control or answers()
    gaps = {name: {5: 4.0} for name in wrong}
    scores = {
        VARIANT: tuple(score(VARIANT, each, gaps.get(each.request_id, ())) for each in mine),
        "baseline": tuple(score("baseline", each) for each in baseline),
        "control": tuple(score("control", each) for each in control),
    }
    return between.judge(
        captured(
            "between",
            arm(VARIANT, mine, events),
            arm("baseline", baseline, peer_events),
            arm("control", control, peer_events),
            workload=WORKLOAD,
            scores=scores,
            alpha=1e-5,
            **fields,
        )
    )


def dead(one, prompt):
    return replace(one, choices=(replace(one.choice, windows=DEAD),))


def caching(tokens):
    return lambda one, prompt: replace(one, usage=replace(one.usage, cached_tokens=tokens))


def a_block_fewer(one, prompt):
    return replace(one, usage=replace(one.usage, cached_tokens=one.usage.cached_tokens - 16))


def counting(accepted, drafted):
    counters = SpecCounters(drafts=20, draft_tokens=drafted, accepted_tokens=accepted)
    return lambda one, prompt: replace(one, counters=counters, choices=(replace(one.choice, windows=None),))


def test_a_server_that_is_as_before_passes_and_says_after_what():
    verdict = judged(answers())
    assert verdict.outcome is Outcome.PASS
    assert "as before after saving and restoring the slot, sleep level 1, refit" in verdict.headline
    assert any(f"{VARIANT}: sleep-1: POST /x: 200 in 0.10 s" in line for line in verdict.evidence)


def test_wrong_tokens_are_named_by_the_first_event_that_they_come_after():
    verdict = judged(answers(), ["sleep-1/repeat-09", "refit/repeat-09+", "refit/rag-06"])
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "answers are wrong after sleep level 1")
    assert "1 of 6 answers, none of 6 before" in verdict.headline
    assert verdict.example is None, "the request alone would not show it"


def test_wrong_tokens_before_any_event_are_no_matter_of_events():
    verdict = judged(answers(), ["before/repeat-09", "sleep-1/repeat-09"])
    assert verdict.outcome is Outcome.FAIL
    assert not verdict.names.startswith(between.WRONG)
    assert any("before 1 of 6, slot-save-restore 0 of 6, sleep-1 1 of 6" in line for line in verdict.short)


def test_wrong_tokens_after_an_event_that_was_refused_are_not_named_by_it():
    refused = {**DONE, "sleep-1": REFUSED["sleep-1"]}
    for wrong in (["sleep-1/repeat-09"], ["sleep-1/repeat-09", "refit/repeat-09"]):
        verdict = judged(answers(), wrong, events=refused, peer_events=refused)
        assert verdict.outcome is Outcome.FAIL
        assert not verdict.names.startswith(between.WRONG)
        assert any("sleep-1 1 of 6" in line for line in verdict.short)
    assert judged(answers(), ["refit/repeat-09"], events=refused).names == "answers are wrong after refit"


def at_its_limit_called_an_end(one, prompt):
    return replace(one, choices=(replace(one.choice, finish_reason="stop"),)) if prompt == "repeat-09" else one


def test_a_wrong_end_is_not_named_by_a_single_token_after_an_event():
    verdict = judged(answers(before=at_its_limit_called_an_end), ["sleep-1/repeat-09"])
    assert verdict.outcome is Outcome.FAIL
    assert verdict.check is SharedCheck.ENDING
    assert any("sleep-1 1 of 6" in line for line in verdict.short)


def test_drafts_that_die_are_named_by_the_first_event_that_they_die_after():
    verdict = judged(answers(sleep_1=dead, refit=dead))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "drafts are no longer accepted after sleep level 1")
    assert "event        sleep-1" in verdict.short[-1]
    assert judged(answers(refit=dead)).names == "drafts are no longer accepted after refit"
    assert judged(answers(before=dead, slot_save_restore=dead, sleep_1=dead, refit=dead)).outcome is not Outcome.FAIL


def test_drafts_that_die_are_seen_in_the_counts_of_answers_without_windows():
    healthy = {"before": counting(30, 60), "slot_save_restore": counting(30, 60), "sleep_1": counting(30, 60)}
    assert judged(answers(**healthy, refit=counting(30, 60))).outcome is Outcome.PASS
    for drafted in (60, 0):
        assert judged(answers(**healthy, refit=counting(0, drafted))).names == "drafts are no longer accepted after refit"


def test_other_answers_than_before_are_not_compared_by_their_drafts():
    def another(one, prompt):
        return replace(one, choices=(replace(one.choice, token_ids=(7, *one.choice.token_ids[1:]), windows=DEAD),))

    assert not judged(answers(refit=another)).names.startswith(between.DRAFTS_DIE)


def test_cached_tokens_after_an_event_are_those_of_the_baseline():
    for none in (0, None):
        assert judged(answers(slot_save_restore=caching(none))).names == between.COMPUTED_AGAIN
    assert judged(answers(sleep_1=caching(0))).names == "cached tokens are lost by sleep level 1"
    emptied = answers(sleep_1=caching(0))
    assert judged(answers(), baseline=emptied, control=emptied).names == "cached tokens survive sleep level 1"
    assert judged(emptied, baseline=emptied, control=emptied).outcome is Outcome.PASS
    assert judged(answers(), baseline=emptied).outcome is Outcome.PASS, "the control keeps them"
    assert judged(answers(refit=caching(141))).names == between.OVERCOUNT
    assert judged(answers(cached=False)).outcome is Outcome.PASS, "a server that never reports any may not count them"


def test_a_block_of_the_drafter_may_be_computed_again():
    assert judged(answers(slot_save_restore=a_block_fewer)).outcome is Outcome.PASS


REFUSED = {name: EventOutcome(name=name, steps=("POST /x: 404",), status=404, error="Not Found") for name in EVENTS}


def test_events_that_are_all_refused_are_not_served_here():
    verdict = judged(answers(), events=REFUSED)
    assert verdict.outcome is Outcome.REFUSED
    assert 'slot-save-restore was refused with 404: "Not Found"; the baseline serves 3 of them' in verdict.headline
    assert "the baseline refuses them too" in judged(answers(), events=REFUSED, peer_events=REFUSED).headline


def test_one_that_is_refused_is_named_in_a_pass():
    verdict = judged(answers(), events={**DONE, "refit": REFUSED["refit"]})
    assert verdict.outcome is Outcome.PASS
    assert verdict.headline.endswith("sleep level 1; not served here: refit (404)")


def failed(name, recurred, ending=FailureKind.ERROR):
    failure = EventOutcome(name=name, steps=("POST /x: 500",), status=500, error="no sleep mode", ending=ending, recurred=recurred)
    return {**DONE, name: failure}


@pytest.mark.parametrize(
    "event, ending, name",
    [
        ("sleep-1", FailureKind.ERROR, "the server answers 5xx to sleep level 1"),
        ("sleep-1", FailureKind.DIED, "the server dies in sleep level 1"),
        ("sleep-1", FailureKind.HUNG, "the server hangs in sleep level 1"),
    ],
)
def test_an_event_that_fails_again_on_a_fresh_server_fails_if_the_baseline_survives_it(event, ending, name):
    verdict = judged(answers(), events=failed(event, recurred=True, ending=ending))
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, name)


def test_a_command_that_fails_is_named_as_one():
    command = EventOutcome(
        name="refit", steps=("command refit.sh: exit code 3",), error="exit code 3: x", ending=FailureKind.ERROR, recurred=True
    )
    assert judged(answers(), events={**DONE, "refit": command}).names == "the command of refit fails"


def test_an_event_that_fails_once_or_on_the_baseline_too_judges_nobody():
    for recurred in (None, False):
        once = judged(answers(), events=failed("sleep-1", recurred=recurred))
        assert (once.outcome, once.transient) == (Outcome.INVALID, True)
    steps = ("POST /x: no reply", "on a fresh server", "POST /x: 200")
    survived = EventOutcome(name="sleep-1", steps=steps, status=200, recurred=False)
    once = judged(answers(), events={**DONE, "sleep-1": survived})
    assert once.headline.startswith("sleep level 1 fails, once, but not again on a fresh server: POST /x: no reply")
    both = judged(answers(), events=failed("sleep-1", recurred=True), peer_events=failed("sleep-1", recurred=True))
    assert both.outcome is Outcome.INVALID
    assert "the baseline does not survive sleep level 1 either" in both.headline
    alone = judged(answers(), peer_events=failed("sleep-1", recurred=True))
    assert alone.outcome is Outcome.INVALID
    assert "the baseline itself fails in sleep-1" in alone.headline


def test_a_request_that_hangs_after_an_event_is_named_by_it():
    failure = ServerFailure(request_id="sleep-1/repeat-09", ending=FailureKind.HUNG, recurred=True)
    verdict = judged(answers(), server_failures=[failure])
    assert (verdict.outcome, verdict.names) == (Outcome.FAIL, "the server hangs on a request after sleep level 1")
    before = judged(answers(), server_failures=[replace(failure, request_id="before/repeat-09")])
    assert before.names == "the server hangs on a request"

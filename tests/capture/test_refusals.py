"""A 4xx counts as a refusal where the same request gets it again and others are answered; else the arm or the workload ends."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from pytest_specdec.capture import refusals, remaining, runner
from pytest_specdec.capture.client import TimedAnswer
from pytest_specdec.capture.planner import SelectedWorkload, make
from pytest_specdec.files import run_documents, transcripts
from pytest_specdec.model.status import State
from pytest_specdec.model.transcript import Answer, FailureKind
from pytest_specdec.model.workload import Depth, Family, Request, Route

VARIANT = "draft-k3"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(refusals, "_PAUSE_S", 0.0)


@pytest.fixture
def run(directory, workload, config, with_args):
    """Capture two workloads, with arguments for one variant's server alone; again with ``again``."""

    def _run(*, again=False, timed=False, route=Route.COMPLETIONS, **args):
        # One at a time, so that it is known which request is the first.
        asked = [workload(timed=timed, concurrency=1, scored=False), workload("other", concurrency=1, scored=False)]
        asked = [replace(one, requests=tuple(sent_to(route, request) for request in one.requests)) for one in asked]
        selected = [SelectedWorkload(workload=one, family=Family.LIVENESS) for one in asked]
        plan = make(config, selected, Depth.SMOKE, [VARIANT])
        capture = runner.resume if again else runner.record
        return plan, capture(with_args(config, VARIANT, **args), plan, directory, deadline_s=None, tell=lambda _: None)

    return _run


def sent_to(route, request):
    """The same prompt on another route."""
    prompt, *_ = request.body.values()
    messages = [{"role": "user", "content": prompt}]
    body = request.body if route is Route.COMPLETIONS else {"messages": messages, "max_tokens": 6, "temperature": 0.0}
    return replace(request, route=route, body=body)


def written(directory):
    """What the variant's server wrote in all its boots."""
    return "".join(path.read_text() for path in (directory.root / "servers").glob(f"*-{VARIANT}.log"))


def test_a_server_that_answers_nobody_any_more_ends_its_arm_and_a_resume_asks_again(run, directory):
    """As with a key that expires at the third request."""
    _, found = run(turn_away_on="p2 of greedy")
    assert found.state is State.INCOMPLETE
    reasons = {gap.reason for gap in found.missing if gap.arm == VARIANT}
    assert len(reasons) == 1, "one cause, one sentence"
    assert "request p2 got 401 (who are you?)" in reasons.pop()
    assert not {"asked p3 of greedy", "asked p0 of other"} & set(written(directory).splitlines()), "nothing else is asked of it"
    assert transcripts.read(directory, VARIANT, "greedy") is None
    assert VARIANT not in run_documents.read_capabilities(directory)
    plan, again = run(again=True)
    assert (again.state, again.missing) == (State.COMPLETE, ())
    whole = transcripts.read(directory, VARIANT, "greedy")
    assert all(answer.ok for answer in whole.answers)
    assert not remaining.has_answers_to_renew(directory, plan)
    # A transcript of a release that took this for a refusal is asked for again, too.
    transcripts.write(directory, replace(whole, answers=(replace(whole.answers[0], status=401, choices=()), *whole.answers[1:])))
    assert remaining.has_answers_to_renew(directory, plan)


def test_a_timed_workload_ends_alike(run, directory):
    _, found = run(timed=True, turn_away_on="p2 of greedy")
    assert found.state is State.INCOMPLETE
    assert {"access lost" in gap.reason for gap in found.missing} == {True}


def test_a_refusal_that_holds_is_one(run, directory):
    _, found = run(refuse_on="p2 of greedy")
    assert found.state is State.COMPLETE
    transcript = transcripts.read(directory, VARIANT, "greedy")
    assert [answer.request_id for answer in transcript.answers if answer.refused] == ["p2"]
    assert not transcript.server_failures
    assert written(directory).count("asked p2 of greedy") == 2, "it was asked twice"


def test_a_refusal_that_does_not_hold_is_a_failure_that_did_not_recur(run, directory):
    _, found = run(turn_away_on="p2 of greedy", turn_away=400, turn_away_times=1)
    assert found.state is State.COMPLETE
    transcript = transcripts.read(directory, VARIANT, "greedy")
    assert all(answer.ok for answer in transcript.answers)
    assert [(each.request_id, each.ending, each.recurred) for each in transcript.server_failures] == [("p2", FailureKind.REFUSED, False)]


def test_a_401_of_one_request_costs_its_workload_and_no_other(run, directory):
    _, found = run(turn_away_on="p2 of greedy", turn_away_times=1)
    assert found.state is State.INCOMPLETE
    assert [(gap.arm, gap.workload) for gap in found.missing] == [(VARIANT, "greedy")]
    assert "request p2 got 401 (who are you?), and an answer later" in found.missing[0].reason
    assert all(answer.ok for answer in transcripts.read(directory, VARIANT, "other").answers)


@pytest.mark.examples(1)
@pytest.mark.parametrize("chat, silent", [({"only_completions": True}, True), ({"refuse_on": "p0 of"}, False)])
def test_a_route_that_answers_nothing_stands_in_the_transcript(run, directory, chat, silent):
    """As behind a proxy that answers 400 to every conversation, beside an engine that refuses one."""
    _, found = run(route=Route.CHAT, **chat)
    assert found.state is State.COMPLETE
    for arm, routes in ((VARIANT, (Route.CHAT,) if silent else ()), ("baseline", ())):
        assert transcripts.read(directory, arm, "greedy").silent_routes == routes
    plan, again = run(route=Route.CHAT, again=True)
    assert again.state is State.COMPLETE
    assert transcripts.read(directory, VARIANT, "greedy").silent_routes == (), "a resume asked again"
    assert not remaining.has_answers_to_renew(directory, plan)


def test_a_route_that_goes_silent_after_answers_is_an_outage(run, directory):
    _, found = run(route=Route.CHAT, turn_away_chat=True, turn_away_on="p2 of greedy", turn_away=400)
    assert found.state is State.INCOMPLETE
    assert "request p2 got 400 (who are you?), and so did a plain request on its route, which answered before" in found.missing[0].reason


class Arm:
    """A server that gives the next of ``statuses`` to each request; None is a connection that is lost."""

    left_s = staticmethod(lambda: 60.0)
    recipe = SimpleNamespace(setup=SimpleNamespace(url="http://there"))

    def __init__(self, statuses, *, answered_chat):
        self.lost, self.answered, self._statuses, self.client = "", {Route.CHAT: EARLIER} if answered_chat else {}, [*statuses], self
        self.asked = []

    def send(self, request, **_):
        self.asked.append(request.id)
        status = self._statuses.pop(0)
        ending = FailureKind.DIED if status is None else {500: FailureKind.ERROR, HANG: FailureKind.HUNG}.get(status)
        return TimedAnswer(answer=Answer(request_id=request.id, status=status, error="no"), ending=ending)

    def add_aside(self, answer):
        assert answer.ok


HANG = -1
"""No status: the request hangs."""
ONE, TWO, THREE, FOUR = ["a"], ["a", "a"], ["a", "a", "ready"], ["a", "a", "ready", "plain"]
FIVE = [*FOUR, "ready"]
CHAT = Request(id="a", route=Route.CHAT, body={})
EARLIER = Request(id="earlier", route=Route.CHAT, body={"max_tokens": 4}, abort_after=2)


@pytest.mark.parametrize(
    "statuses, asked, comes",
    [
        ([200], ONE, "200"),
        ([500], ONE, "500 5xx"),
        ([None], ONE, "None died"),
        ([400, 400, 200, 200], FOUR, "400"),
        ([400, 400, 200, 400], FOUR, "400 silent"),
        *(([400, 400, 200, plain, 200], FIVE, "400") for plain in (401, 403, 408, 429, 499, 500, HANG)),
        *(([400, 400, 200, plain, 403], FIVE, "lost") for plain in (401, 403, 429, 500, HANG)),
        *(([400, 400, 200, plain, None], FIVE, "None died") for plain in (403, 500, HANG)),
        ([400, 400, 200, 422], FOUR, "400 silent"),
        ([400, 400, 200, None], FOUR, "None died"),
        ([501, 501, 200, 501], FOUR, "501 silent"),
        ([404, 404, 200, 404], FOUR, "404 silent"),
        ([422, 200], TWO, "200 after 422"),
        ([400, None], TWO, "None died"),
        ([400, 400, None], THREE, "None died"),
        ([400, 400, 400], THREE, "lost"),
        *(([status, status, status], THREE, "lost") for status in (401, 402, 403, 404, 408, 409, 425, 499)),
        ([403, 403, 200], THREE, "denied: twice"),
        ([401, 200], TWO, "denied: once"),
        ([429, 429], ["a", "ready"], "lost"),
        ([429, 200], ["a", "ready"], "denied: twice"),
    ],
)
def test_what_a_4xx_is_taken_for(statuses, asked, comes):
    arm = Arm(statuses, answered_chat=False)
    found = refusals.examine(arm, CHAT, arm.send(CHAT), lambda: arm.send(CHAT))
    after = f" after {found.refusal.answer.status}" if found.refusal else ""
    ending = f" {found.ending.value}" if found.ending else ""
    denied = f"denied: {'twice' if 'twice' in found.denial else 'once'}" if found.denial else ""
    silent = " silent" if found.on_silent_route else ""
    assert ("lost" if arm.lost else denied or f"{found.answer.status}{ending}{after}{silent}") == comes
    assert arm.asked == asked
    assert found.answer.request_id == "a"
    assert not arm.lost or found.denial == arm.lost


def test_a_route_that_the_server_does_not_have_is_silent_beside_a_chat_that_answers():
    arm = Arm([404, 404, 200, 404] * 2, answered_chat=True)
    request = Request(id="a", route=Route.RESPONSES, body={"input": "Hi"})
    for _ in range(2):
        assert refusals.examine(arm, request, arm.send(request), lambda: arm.send(request)).on_silent_route
    assert (arm.asked, arm.lost) == (FOUR * 2, "")


IDS = Request(id="a", route=Route.COMPLETIONS, body={"prompt": (7, 8, 9), "max_tokens": 24})


@pytest.mark.parametrize("one_id, comes", [(404, "404"), (200, "denied"), (401, "denied"), (400, "denied"), (None, "died"), (HANG, "hung")])
def test_a_404_to_token_ids_is_a_refusal_if_one_id_alone_gets_it_too(one_id, comes):
    """As of mlx-lm, which takes text alone. A model unloaded for a moment answers the one id again."""
    arm = Arm([404, 404, 200, one_id], answered_chat=False)
    arm.answered[Route.COMPLETIONS] = EARLIER
    examined = refusals.examine(arm, IDS, arm.send(IDS), lambda: arm.send(IDS))
    assert arm.asked == [*THREE, "one-id"]
    denied = "denied" if "twice, while other requests are answered" in examined.denial else ""
    assert (denied or (examined.ending.value if examined.ending else str(examined.answer.status))) == comes
    assert examined.answer.request_id == "a"


def test_a_404_of_a_route_that_was_answered_before_is_no_refusal():
    arm = Arm([404, 404, 200], answered_chat=True)
    assert "twice, while other requests are answered" in refusals.examine(arm, CHAT, arm.send(CHAT), lambda: arm.send(CHAT)).denial


def test_a_404_to_an_adapter_of_a_route_that_was_answered_before_is_a_refusal():
    """As of a server that does not have it."""
    arm, request = Arm([404, 404, 200, 200], answered_chat=True), replace(CHAT, adapter="sql", body={**CHAT.body, "model": "sql"})
    found = refusals.examine(arm, request, arm.send(request), lambda: arm.send(request))
    assert (found.answer.status, found.denial, arm.asked) == (404, "", [*THREE, "earlier"])
    answered = Arm([200], answered_chat=False)
    refusals.examine(answered, request, answered.send(request), lambda: None)
    assert not answered.answered, "no plain request is one that the server may refuse for its adapter"


@pytest.mark.parametrize("plain, denied", [(200, False), (400, True)])
def test_a_400_of_a_route_that_answered_before_counts_where_it_still_answers(plain, denied):
    arm = Arm([400, 400, 200, plain], answered_chat=True)
    found = refusals.examine(arm, CHAT, arm.send(CHAT), lambda: arm.send(CHAT))
    assert ("plain request on its route" in found.denial, found.on_silent_route) == (denied, False)
    assert arm.asked == [*THREE, "earlier"], "the plain request is one that this server has answered"


@pytest.mark.parametrize("failure", [500, HANG, 401, 403, 429])
def test_what_befalls_the_plain_request_is_not_held_against_a_refusal_on_a_route_that_answered(failure):
    arm = Arm([400, 400, 200, failure, 200], answered_chat=True)
    found = refusals.examine(arm, CHAT, arm.send(CHAT), lambda: arm.send(CHAT))
    assert (found.answer.status, found.ending, found.denial, found.on_silent_route) == (400, None, "", False)


def test_the_plain_request_is_the_shortest_that_was_answered_and_is_read_to_its_end():
    arm = Arm([200] * 3, answered_chat=False)
    for id_, tokens in (("long", 64), ("short", 2), ("middle", 8)):
        request = replace(EARLIER, id=id_, body={"max_tokens": tokens})
        refusals.examine(arm, request, arm.send(request), lambda: None)
    assert (arm.answered[Route.CHAT].id, arm.answered[Route.CHAT].abort_after) == ("short", None)


def test_the_route_of_the_one_token_is_asked_no_second_time():
    arm, request = Arm([400, 400, 200], answered_chat=False), replace(CHAT, route=Route.COMPLETIONS)
    assert refusals.examine(arm, request, arm.send(request), lambda: arm.send(request)).answer.status == 400
    assert arm.asked == THREE


def test_who_is_turned_away_after_access_was_lost_is_not_asked_again():
    arm = Arm([400], answered_chat=True)
    arm.lost = "access lost"
    assert refusals.examine(arm, CHAT, arm.send(CHAT), lambda: arm.send(CHAT)).denial == "access lost"

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_specdec.judge import blackbox, sampling, units
from pytest_specdec.model.answer import Answer
from pytest_specdec.model.captured import Capabilities, Captured, Support
from pytest_specdec.model.pair import BASELINE, CONTROL
from pytest_specdec.model.transcript import SpecCounters, Transcript
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.model.workload import Request, Route
from tests.judge import toy_speculation as toy

LABEL = "smoke test: tokens cannot be scored (prompt_logprobs refused, continuations refused)"
SUPPORT = {
    "token_ids": Support.HONOURED,
    "prompt_logprobs": Support.REFUSED,
    "continuations": Support.REFUSED,
    "seed": Support.HONOURED,
}
WORDS = ["the ", "a ", "of ", "and ", "house", ", ", ". ", "tree "]


def unscored(
    fault="", *, answers=64, prompts=48, tokens=48, draw=1, anew=False, server=None, words=False, body=None, **support
) -> Captured:
    """What a judge sees of an engine without prompt log-probabilities; ``anew``: the control draws again, for seeds are ignored.

    ``server`` has fields of the control's server where it is to be another.
    """
    random = np.random.default_rng(draw)
    draft = toy.draft_of("greedy")
    starts = [tuple(random.integers(toy.VOCABULARY, size=12).tolist()) for _ in range(prompts)]
    arms = {
        "v": toy.Server(random=random, draft=draft, fault=fault),
        BASELINE: toy.Server(random=random, draft=draft, speculates=False),
        CONTROL: toy.Server(random=random, draft=draft, speculates=False, **(server or {})),
    }
    said = {name: [arm.answer(f"r{i:03}", starts[i % prompts], tokens) for i in range(answers)] for name, arm in arms.items()}
    if not anew and server is None:
        said[CONTROL] = said[BASELINE]
    if words:
        said = {name: [worded(one) for one in each] for name, each in said.items()}
    counters = SpecCounters(drafts=arms["v"].drafts, draft_tokens=arms["v"].drafted, accepted_tokens=arms["v"].accepted)
    found = {**SUPPORT, "seed": Support.IGNORED if anew else Support.HONOURED, **support}
    one = toy.captured(answers=1)
    return replace(
        one,
        workload=replace(
            one.workload,
            requests=tuple(
                Request(
                    id=f"r{i:03}",
                    route=Route.COMPLETIONS,
                    body={"prompt": f"{i % prompts}", "temperature": 1.0, "seed": i + 1, **(body or {})},
                )
                for i in range(answers)
            ),
        ),
        baseline=transcript(BASELINE, said[BASELINE]),
        control=transcript(CONTROL, said[CONTROL]),
        speculative=transcript("v", said["v"], counters=counters),
        scores={},
        draft_scores={},
        capabilities={BASELINE: Capabilities(support=found, vocabulary=toy.VOCABULARY)},
    )


def transcript(arm, answers, **fields):
    return Transcript(arm=arm, boot=0, workload="w", digest="d", answers=tuple(answers), **fields)


def worded(answer: Answer) -> Answer:
    """The same as a server says it that returns no token ids."""
    choice = replace(answer.choice, text="".join(WORDS[token % 8] for token in answer.choice.token_ids), token_ids=())
    return replace(answer, choices=(choice,), prompt_token_ids=())


def changed(captured: Captured, change) -> Captured:
    """The same with the variant's answers changed, by number and answer."""
    answers = [change(i, one) for i, one in enumerate(captured.speculative.answers)]
    return replace(captured, speculative=replace(captured.speculative, answers=tuple(answers)))


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_healthy_server_passes_a_smoke_test_that_says_what_it_can_see(anew, words):
    verdict = sampling.judge(unscored(anew=anew, words=words))
    assert verdict.outcome is Outcome.PASS, verdict.headline
    kind = "pieces of text" if words else "tokens"
    assert verdict.rules_out.startswith(f"{LABEL}: over 64 answers (")
    assert f"{kind} behind the first) beside {128 if anew else 64} of the baseline" in verdict.rules_out
    assert "of tokens from the commonest follower of the token before would have shown with probability" in verdict.rules_out
    assert 0.0 < verdict.figures["smallest_share_ruled_out"] < 1.0
    assert verdict.cell.startswith("smoke, sees ")
    assert sampling.judge(unscored(anew=anew, words=words)) == verdict, "the same answers, the same verdict"


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_server_that_accepts_everything_fails(anew, words):
    verdict = sampling.judge(unscored("accept-all", anew=anew, words=words))
    assert verdict.outcome is Outcome.FAIL, verdict.headline
    assert verdict.headline.startswith(f"{LABEL}, but the answers are not drawn like the baseline's: classifier")
    assert verdict.short[1].startswith("most apart")
    assert not verdict.names, "which bug it is nobody knows"


@pytest.mark.parametrize("found, judged", [
    ({"prompt_logprobs": Support.REFUSED}, True),
    ({"prompt_logprobs": Support.IGNORED}, True),
    ({"prompt_logprobs": Support.UNKNOWN, "token_ids": Support.IGNORED}, True),
    ({"prompt_logprobs": Support.UNKNOWN, "token_ids": Support.REFUSED}, True),
    ({"prompt_logprobs": Support.HONOURED}, False),
    ({"continuations": Support.HONOURED}, False),
    ({"continuations": Support.UNKNOWN}, False),
    ({"prompt_logprobs": Support.UNKNOWN}, False),
])  # fmt: skip
def test_the_set_up_alone_chooses(found, judged):
    """Missing scores of an engine that gives them, or of which nobody knows, stay invalid, whatever the answers are like."""
    words = found.get("token_ids", Support.HONOURED) is not Support.HONOURED
    for fault in ("", "accept-all"):
        verdict = sampling.judge(unscored(fault, words=words, **found))
        assert verdict.headline.startswith("smoke test: tokens cannot be scored") is judged
        assert (verdict.outcome is Outcome.INVALID) is not judged
        assert judged or verdict.headline == "the baseline's scores of r000 are missing"


def test_without_a_survey_nothing_is_a_black_box():
    assert sampling.judge(replace(unscored(), capabilities={})).outcome is Outcome.INVALID
    variant = Capabilities(support={"prompt_logprobs": Support.REFUSED})
    other = replace(unscored(prompt_logprobs=Support.HONOURED), capabilities={"v": variant})
    assert sampling.judge(other).outcome is Outcome.INVALID, "the baseline scores, not the variant"


def test_scores_are_used_wherever_they_come_from():
    """Another route than the one that the survey tried may have brought them."""
    one = toy.captured()
    verdict = sampling.judge(replace(one, capabilities={**one.capabilities, BASELINE: Capabilities(support=SUPPORT)}))
    assert verdict.rules_out.startswith("over 3,072 sampled tokens")


def test_a_control_that_differs_is_no_fault_of_the_variant():
    one = unscored("accept-all", server={"temperature": 0.4})
    assert sampling.judge(one.as_control()).outcome is Outcome.FAIL
    verdict = sampling.judge(one)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.headline.startswith(f"{LABEL}: the control's answers differ from the baseline's as well: classifier")


@pytest.mark.parametrize("anew", [False, True])
def test_a_control_that_does_not_is_content(anew):
    verdict = sampling.judge(unscored("accept-all", anew=anew).as_control())
    assert (verdict.outcome, verdict.rules_out) == (Outcome.PASS, "")


def test_an_answer_given_again_for_its_seed_is_not_counted_twice():
    assert units.cut(unscored()).blocks.arms == 2
    assert units.cut(unscored(seed=Support.UNKNOWN)).blocks.arms == 2
    assert units.cut(unscored(anew=True)).blocks.arms == 3
    assert units.cut(unscored(anew=True).as_control()).blocks.arms == 2


def test_without_seeds_the_control_is_a_second_draw_unless_it_says_what_the_baseline_said():
    """An engine that seeds itself at boot draws the same for the same requests in the same order."""
    drawn, again = unscored(anew=True, seed=Support.HONOURED, body={"seed": None}), unscored(body={"seed": None})
    assert units.cut(drawn).blocks.arms == 3
    assert units.cut(again).blocks.arms == 2


def test_the_first_token_is_not_judged():
    def saying(*places):
        def change(_, answer):
            ids = [0 if place in places else token for place, token in enumerate(answer.choice.token_ids)]
            return replace(answer, choices=(replace(answer.choice, token_ids=tuple(ids)),))

        return sampling.judge(changed(unscored(), change))

    assert saying(0) == saying()
    assert saying(*range(1, 16)).outcome is Outcome.FAIL


def test_the_end_is_a_unit_where_an_answer_ends_of_itself():
    one = changed(
        unscored(answers=2, prompts=2), lambda i, one: replace(one, choices=(replace(one.choice, finish_reason=["stop", "length"][i]),))
    )
    taken = units.cut(one)
    assert taken.names[0] == ""
    assert (taken.blocks.units == 0).sum(axis=2).tolist() == [[1, 0], [0, 0]]
    assert taken.blocks.units[0, 0, -1] == 0


def test_too_few_answers_say_how_many_would_do():
    verdict = sampling.judge(unscored(answers=12))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.headline.startswith(f"{LABEL}: too little to tell: over 12 answers")
    about, number, *_ = verdict.settle.split()
    assert (about, 12 < int(number) < 64) == ("about", True)
    assert sampling.judge(unscored(answers=int(number) + 4)).outcome is Outcome.PASS


def test_too_few_answers_are_not_tested_so_that_a_continued_run_is_looked_at_once(monkeypatch):
    monkeypatch.setattr(blackbox, "compared", lambda *_: pytest.fail("tested"))
    verdict = sampling.judge(unscored("resample-from-p", answers=12))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert set(verdict.figures) == {"answers", "units"}


def test_answers_without_a_choice_in_them_say_so():
    still = unscored(answers=30)
    same = replace(still.speculative, answers=still.baseline.answers)
    told = [replace(one, choices=(replace(one.choice, token_ids=(5, 5, 5)),)) for one in still.baseline.answers]
    every = {
        name: replace(each, answers=tuple(told))
        for name, each in (("speculative", same), ("baseline", still.baseline), ("control", still.control))
    }
    verdict = sampling.judge(replace(still, **every))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.settle.startswith("these answers have no choice in them")


def test_a_server_that_drafts_nothing_does_not_pass():
    one = unscored()
    verdict = sampling.judge(replace(one, speculative=replace(one.speculative, counters=SpecCounters())))
    assert verdict.outcome is Outcome.NOT_SPECULATING


def test_what_is_left_out_is_counted():
    one = changed(unscored(answers=40), lambda i, answer: replace(answer, status=400, choices=()) if i < 3 else answer)
    taken = units.cut(one)
    assert len(taken.blocks) == 37
    assert taken.skipped == ("3 requests not judged: not answered 200 by every arm",)
    assert units.cut(unscored(answers=20, prompts=4, body={"seed": 7})).skipped == (
        "19 requests not judged: its seed was asked for before",
    )
    nothing = sampling.judge(unscored(answers=5, body={"temperature": 0}))
    assert nothing.outcome is Outcome.INCONCLUSIVE
    assert nothing.headline.endswith("nothing to compare: 5 requests not judged: temperature 0 leaves nothing to draw")


def test_prompts_are_one_that_differ_in_seed_only():
    taken = units.cut(unscored(answers=20, prompts=8))
    assert taken.blocks.prompts.tolist() == [i % 8 for i in range(20)]


def test_text_falls_into_pieces_of_about_a_token():
    one = Answer(
        request_id="r", status=200, choices=(replace(toy.captured(answers=1).speculative.answers[0].choice, text="It was, remarkably so."),)
    )
    cut = units._pieces(one, tokens=False)
    assert cut == [" ", "was", ",", " ", "rema", "rkab", "ly", " ", "so", "."]

"""The new baseline scores what the old one answered: captured, resumed, and never at the cost of the run's own verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture import planner, scoring
from pytest_specdec.capture.planner import SelectedWorkload
from pytest_specdec.capture.runner import record, resume
from pytest_specdec.files import old_answers, run_documents, transcripts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.model.pair import OLD_BASELINE
from pytest_specdec.model.plan import Placement
from pytest_specdec.model.status import State
from pytest_specdec.model.workload import Depth, Family


@pytest.fixture
def after_an_upgrade(config, workload, directory, tmp_path):
    """A run at smoke depth whose plan scores the old answers too, and that has them; its capture as a function."""
    selected = [SelectedWorkload(workload=workload(), family=Family.GREEDY)]
    config = replace(config, placement=Placement.IN_TURN)
    old = RunDirectory.create(tmp_path / "old")
    before = planner.make(config, selected, Depth.SMOKE)
    record(config, before, old, deadline_s=None, tell=lambda _: None)
    plan = planner.make(config, selected, Depth.SMOKE, options=planner.PlanOptions(old_answers=old_answers.list_answered(old.root)))
    old_answers.copy(old.root, directory, plan)

    def _capture(again=False):
        return (resume if again else record)(config, plan, directory, deadline_s=None, tell=lambda _: None)

    _capture.config, _capture.plan = config, plan
    return _capture


def read_scores(directory):
    return transcripts.read_scores(directory, "baseline", OLD_BASELINE, "greedy")


def test_old_answers_are_scored_and_scored_again_where_a_resumed_run_lacks_them(after_an_upgrade, directory):
    assert after_an_upgrade().state is State.COMPLETE
    answers, scores = transcripts.read(directory, OLD_BASELINE, "greedy").answers, read_scores(directory)
    assert [tuple(position.token_id for position in score.positions) for score in scores] == [each.choice.token_ids for each in answers]
    boots = run_documents.read_status(directory).boots
    assert after_an_upgrade(again=True).boots == boots, "nothing is left to do"
    directory.scores("baseline", OLD_BASELINE, "greedy").unlink()
    assert after_an_upgrade(again=True).boots == boots + 1
    assert read_scores(directory) == scores


def refuse_old_tokens(monkeypatch, reporter_is_over=False):
    real = scoring.TranscriptScorer.score

    def score(self, transcript, top_tokens):
        if transcript.arm != OLD_BASELINE:
            return real(self, transcript, top_tokens)
        if reporter_is_over:
            self.reporter.end("time is over")
        return scoring.ScoredTranscript(scores=(), missing="2 of 2 answers are not scored: 400: no such token")

    monkeypatch.setattr(scoring.TranscriptScorer, "score", score)


def test_tokens_that_the_new_engine_refuses_are_a_warning_and_the_run_is_whole(after_an_upgrade, monkeypatch):
    refuse_old_tokens(monkeypatch)
    status = after_an_upgrade()
    assert (status.state, status.missing) == (State.COMPLETE, ())
    assert [text for text in status.warnings if "no such token" in text] == [
        "old.baseline, greedy: 2 of 2 answers are not scored: 400: no such token"
    ]


def test_old_answers_that_time_did_not_suffice_for_are_missing_and_nothing_else_is(after_an_upgrade, monkeypatch):
    refuse_old_tokens(monkeypatch, reporter_is_over=True)
    status = after_an_upgrade()
    assert status.state is State.INCOMPLETE
    assert OLD_BASELINE in {missing.arm for missing in status.missing}
    assert not {missing.arm for missing in status.missing} & {"baseline", "control", "draft-k3", "ngram-k3"}


def test_a_workload_without_old_answers_leaves_nothing_missing(after_an_upgrade, directory):
    directory.transcript(OLD_BASELINE, "greedy").unlink()
    assert after_an_upgrade().state is State.COMPLETE
    assert not read_scores(directory)

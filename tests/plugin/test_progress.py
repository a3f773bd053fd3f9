from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.status import BootTime, MissingAnswers, Progress, State, Status
from pytest_specdec.plugin.progress import EVERY_S, Ticker, last_word

STEP = Progress(at_s=0.0, boot=0, boots=2, arm="baseline", doing="answering", workload="chat", done=0, of=9)


class Reporter:
    def __init__(self, tty):
        self.isatty, self.written = tty, []

    def rewrite(self, line, **_):
        self.written.append("\r" + line)

    def write(self, text):
        self.written.append(text)

    def write_line(self, line):
        self.written.append(line + "\n")


class Config:
    def __init__(self, reporter, verbosity=0):
        self.pluginmanager, self.reporter, self.verbosity = self, reporter, verbosity

    def getplugin(self, _):
        return self.reporter

    def get_verbosity(self):
        return self.verbosity


def test_a_terminal_has_one_line_that_is_rewritten():
    reporter = Reporter(tty=True)
    ticker = Ticker(Config(reporter))
    for at_s in range(3):
        ticker(replace(STEP, at_s=float(at_s), done=at_s))
    ticker.say("over")
    assert [text[0] for text in reporter.written[:3]] == ["\r"] * 3
    assert reporter.written[-2:] == ["\r", "over\n"]


@pytest.mark.parametrize("ci", [True, False])
def test_elsewhere_there_is_a_line_now_and_then(monkeypatch, ci):
    if ci:
        monkeypatch.setenv("CI", "1")
    reporter = Reporter(tty=ci)
    ticker = Ticker(Config(reporter))
    for at_s in range(100):
        ticker(replace(STEP, at_s=float(at_s), done=at_s // 20))
    ticker(replace(STEP, at_s=100.0, boot=1))
    assert len(reporter.written) == 1 + 99 // EVERY_S + 1
    assert all(text.endswith("\n") and "\r" not in text for text in reporter.written)


@pytest.mark.parametrize("tty", [True, False])
def test_news_has_a_line_of_its_own_at_once(tty):
    reporter = Reporter(tty=tty)
    ticker = Ticker(Config(reporter))
    for doing in ("answering", "2 requests at a time from here on", "answering"):
        ticker(replace(STEP, at_s=1.0, doing=doing))
    assert [text for text in reporter.written if "2 requests" in text and text.endswith("\n")]


@pytest.mark.parametrize("config", [Config(None), Config(Reporter(tty=True), verbosity=-1)], ids=["no reporter", "quiet"])
def test_nobody_listening_is_fine(config):
    ticker = Ticker(config)
    ticker(STEP)
    ticker.say("over")
    assert config.reporter is None or not config.reporter.written


def test_the_last_word_names_what_is_missing():
    missing = tuple(MissingAnswers(arm=f"v{i}", workload="chat" * (i % 2), reason="") for i in range(6))
    status = Status(state=State.INCOMPLETE, missing=missing, boots=4, restarts=2, wall_s=65.0)
    last = last_word(status)
    for figure in ("incomplete", "1:05", "4 boots", "2 restarts", "v0, v1/chat, v2, v3/chat, …"):
        assert figure in last


def test_boots_at_once_do_not_take_turns_on_the_screen(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    reporter = Reporter(tty=False)
    ticker = Ticker(Config(reporter))
    for at_s in range(20):
        ticker(replace(STEP, at_s=float(at_s), boot=at_s % 2))
    assert len(reporter.written) == 2


def test_the_last_word_says_how_busy_the_servers_were():
    served = (BootTime(boot=0, arm="draft-k3", readiness_s=1.0, wall_s=9.0, busy=0.934),)
    assert last_word(Status(state=State.COMPLETE, boots=1, served=served)).endswith("1 boots; servers busy: draft-k3 0.93")

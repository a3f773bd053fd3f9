"""The burst probe: what it asks of a server, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.capture.burst_probe import BurstProbe
from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.engines.plain_dialect import PlainDialect
from pytest_specdec.model.transcript import SpecCounters


class Plain(PlainDialect):
    health_path = "/health"


class Counting(Plain):
    def counted(self, reply):
        return SpecCounters(drafts=1) if reply.get("usage") else None


@pytest.fixture
def arm(recipe, config):
    opened = []

    def _arm(dialect, **args):
        opened.append(ArmServer(replace(recipe(config, **args), dialect=dialect), lambda: None))
        return opened[-1].__enter__()

    yield _arm
    for one in opened:
        one.__exit__(None, None, None)


def test_every_prompt_is_streamed_again_and_noted_chunk_by_chunk(arm):
    streams = BurstProbe(arm(Plain())).run()
    assert [stream.prompt for stream in streams][:24] == [*range(12), *range(12)]
    assert len(streams) in {24, 36, 48, 60, 72}
    assert all(stream.ends == tuple(range(1, stream.tokens + 1)) and len(stream.text) == stream.tokens for stream in streams)
    assert all(stream.at_s[0] > 0.0 and list(stream.at_s) == sorted(stream.at_s) for stream in streams)
    assert len({(stream.prompt, stream.text) for stream in streams}) == 12


def test_a_server_whose_answers_tell_their_steps_is_not_asked(arm):
    server = arm(Counting())
    assert BurstProbe(server).run() == ()
    assert server.recipe.log.read_text().count("asked quartz") == 1
    assert "violin" not in server.recipe.log.read_text()


def test_a_server_that_dies_or_refuses_leaves_what_there_was(arm):
    assert len(BurstProbe(arm(Plain(), die_on="violin")).run()) == 1
    assert BurstProbe(arm(Plain(), refuse_on="value")).run() == ()

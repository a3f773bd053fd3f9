"""Reasoning on the wire: a server that tells it apart from the answer, whole and streamed, into a transcript and back."""

from __future__ import annotations

import pytest

from pytest_specdec.capture.server.server import ArmServer
from pytest_specdec.files import transcripts
from pytest_specdec.model.transcript import Transcript
from pytest_specdec.model.workload import Request, Route

ASKED = Request(id="a", route=Route.CHAT, body={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_beside_the_text_and_counted(recipe, config, directory, name):
    with ArmServer(recipe(config), lambda: None) as plain:
        (text,) = {plain.client.send(ASKED, streamed=streamed, deadline_s=10.0).answer.choice.text for streamed in (False, True)}
    with ArmServer(recipe(config, reasoning=name), lambda: None) as server:
        answers = tuple(server.client.send(ASKED, streamed=streamed, deadline_s=10.0).answer for streamed in (False, True))
    for answer in answers:
        assert (answer.choice.reasoning, answer.choice.text) == (text[:3], text[3:])
        assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens, len(answer.choice.token_ids)) == (8, 3, 8)
    transcripts.write(directory, Transcript(arm="v", boot=0, workload="w", digest="0" * 16, answers=answers[:1]))
    (kept,) = transcripts.read(directory, "v", "w").answers
    assert (kept.choice, kept.usage) == (answers[0].choice, answers[0].usage)

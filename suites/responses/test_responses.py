"""Responses: OpenAI's Responses API (`/v1/responses`) gives what the chat route gives, whole and streamed.

Each conversation is sent four times: by both routes, whole and streamed. A pass means: every stream keeps the order of its events, ends
with a terminal one, and says the same in deltas, done events and final response; texts, tool calls, usage and status are the chat's.
"""

from __future__ import annotations

import pytest

from pytest_specdec import judge
from pytest_specdec.prompts import responses


@pytest.mark.specdec(responses.pairs(), family="responses")
def test_the_responses_api_gives_what_the_chat_gives(captured, check):
    check(judge.responses.judge(captured))

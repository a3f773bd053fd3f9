"""``between`` of a config: events of POSTs and commands, with variables as written and their values masked."""

from __future__ import annotations

import pytest

from pytest_specdec.config import load, variables
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.event import EventStep

TEXT = """
engine: {kind: reference, model: target}
variants: {draft-k3: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}
between:
"""


def read(tmp_path, between):
    path = tmp_path / "tiny.yaml"
    path.write_text(TEXT + between)
    return load.load(path)


def test_steps_are_posts_and_commands_in_order(tmp_path):
    config = read(
        tmp_path,
        """
  refit: [{url: /collective_rpc, body: {method: reload_weights}}, {command: [./push.sh, --step, "${STEP}"]}]
  sleep-2: null
""",
    )
    post = EventStep(path="/collective_rpc", body={"method": "reload_weights"})
    command = EventStep(command=(str(tmp_path / "push.sh"), "--step", "${STEP}"))
    assert config.between == {"refit": (post, command), "sleep-2": ()}


def test_variables_of_bodies_and_commands_are_masked_and_have_to_be_set(tmp_path):
    text = TEXT + '  refit: [{url: /x, body: {step: "${A}"}}, {command: [push, "${B}"]}]\n'
    values = {"A": "first-value", "B": "second-value"}
    assert variables.secrets_of(text, values).mask("first-value second-value") == "*** ***"
    assert [error.found for error in variables.find_unset(text, {"A": "x"})] == ["${B}"]


@pytest.mark.parametrize(
    "between, words",
    [
        ("  Refit: [{url: /x}]", "lower-case letters, digits and dashes"),
        ("  refit: []", "between.refit: found none, expected at least one"),
        ("  refit: {url: /x}", "expected a list or null"),
        ("  refit: [{url: x}]", "a path from the server's address on"),
        ("  refit: [{body: {}}]", "between.refit[0]: found neither url nor command, expected one of url and command"),
        ("  refit: [{url: /x, command: [a]}]", "between.refit[0]: found url and command, expected one of url and command"),
        ("  refit: [{command: [a], body: {}}]", "between.refit[0].body: found a body of a command"),
        ("  refit: [{urls: /x}]", "did you mean 'url'?"),
        ("  refit: [{url: '/x/${STEP}'}]", "between.refit[0].url: found ${STEP} in a path, expected a path; variables stand in body"),
    ],
)
def test_what_is_no_event_is_a_problem_with_its_place(tmp_path, between, words):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, between)
    assert words in str(caught.value)

"""Prompts files: a prompt per line, and everything wrong with a file at once, by its line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from pytest_specdec.config import load, prompt_file, variables
from pytest_specdec.config.config import Reasoning
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.workload import Route

PAGE = Path(__file__).parents[2] / "docs" / "your-own-prompts.md"
LEAST = "engine: {kind: reference, model: target}\nvariants: {v: {}}\nprompts: mine.jsonl\n"
TALK = '{"id": "a", "messages": [{"role": "user", "content": "hello"}]}'


@pytest.fixture
def config(tmp_path):
    """Write a config beside a prompts file and load it."""

    def written(lines=TALK, text=LEAST):
        data = lines if isinstance(lines, bytes) else lines.encode()
        (tmp_path / "mine.jsonl").write_bytes(data)
        (tmp_path / "mine.yaml").write_text(text)
        return load.load(tmp_path / "mine.yaml")

    return written


def told(config):
    """The problems of a file, one a line, without its name."""
    with pytest.raises(ConfigError) as caught:
        prompt_file.read(config)
    what, *lines = caught.value.what.splitlines()
    assert what == ("the prompts file has a problem" if len(lines) == 1 else f"the prompts file has {len(lines)} problems")
    assert str(config.path.parent / "mine.jsonl") in str(caught.value)
    return [line.strip().removeprefix(f"{config.path.parent / 'mine.jsonl'}:") for line in lines]


def test_a_config_without_a_file_has_no_prompts_and_reads_none(config):
    assert prompt_file.read(config(text=LEAST.replace("prompts: mine.jsonl\n", ""))) == ()


def test_prompts_come_in_the_order_of_the_file(config):
    schema = {"type": "array", "items": {"type": "integer"}}
    lines = [TALK, "", json.dumps({"id": "b-2", "prompt": "def f():\u2028", "max_tokens": 7}, ensure_ascii=False)]
    lines.append(json.dumps({"id": "c", "messages": [{"role": "user", "content": "x"}], "schema": schema}))
    a, b, c = prompt_file.read(config("\ufeff" + "\r\n".join(lines) + "\r\n"))
    assert (a.id, a.route, a.content, a.schema, a.max_tokens) == (
        *("a", Route.CHAT, {"messages": [{"role": "user", "content": "hello"}]}),
        *(None, None),
    )
    assert (b.id, b.route, b.content, b.max_tokens) == ("b-2", Route.COMPLETIONS, {"prompt": "def f():\u2028"}, 7)
    assert c.schema == schema


def test_the_path_may_be_a_variable(config):
    named = variables.fill(config(text=LEAST.replace("mine.jsonl", "${MY_PROMPTS}")), {"MY_PROMPTS": "mine.jsonl"})
    assert [prompt.id for prompt in prompt_file.read(named)] == ["a"]


MISSING = "expected a value: it must be given"
WRONG = [
    ('{"id": "a"}', "the line: found neither prompt nor messages, expected one of the two"),
    ('{"id": "a", "prompt": "x", "messages": [{"role": "user"}]}', "the line: found prompt and messages, expected one of the two"),
    ('{"prompt": "x"}', f"id: found nothing, {MISSING}"),
    ('{"id": "a b", "prompt": "x"}', 'id: found "a b", expected a name of letters, digits and ._-'),
    ('{"id": "a", "promt": "x", "prompt": "x"}', "promt: found an unknown key"),
    ('{"id": "a", "prompt": ""}', "prompt: found an empty string"),
    ('{"id": "a", "prompt": 3}', "prompt: found 3, expected a string; quote it"),
    ('{"id": "a", "messages": []}', "messages: found none, expected at least one"),
    ('{"id": "a", "messages": [{"content": "x"}]}', f"messages[0].role: found nothing, {MISSING}"),
    ('{"id": "a", "messages": ["x"]}', 'messages[0]: found "x", expected a mapping'),
    ('{"id": "a", "prompt": "x", "max_tokens": 0}', "max_tokens: found 0, expected more than 0"),
    ('{"id": "a", "prompt": "x", "schema": {}}', "schema: found a schema beside prompt, expected messages"),
    ('{"id": "a", "messages": [{"role": "user"}], "schema": {"type": "strang"}}', "schema.type: found no JSON Schema: 'strang'"),
    ('{"id": "a", "messages": [{"role": "user"}], "schema": []}', "schema: found [], expected a mapping"),
    ('["a"]', 'the line: found ["a"], expected a mapping'),
    ('{"id": "a", ', "the line: found no JSON"),
    ('{"id": "a", "id": "b", "prompt": "x"}', "the line: found no JSON (the key 'id' is given twice)"),
    ('{"id": "a", "prompt": "x", "prompt": "x"}', "the line: found no JSON (the key 'prompt' is given twice)"),
    ('{"id": "a", "prompt": "x", "max_tokens": NaN}', "the line: found no JSON (NaN is no number of JSON)"),
    ("[" * 100_000, "the line: found no JSON"),
]


@pytest.mark.parametrize("line, said", WRONG, ids=lambda text: text[:40])
def test_a_wrong_line_is_told_by_its_number_and_place(config, line, said):
    (problem,) = told(config(f"{TALK.replace(chr(34) + 'a', chr(34) + 'z')}\n\n{line}\n"))
    assert problem.startswith(f"3  {said}")


def test_a_misspelt_key_gets_the_nearest_one(config):
    assert any("did you mean 'schema'?" in line for line in told(config('{"id": "a", "prompt": "x", "shema": {}}')))


def test_all_problems_are_told_at_once_in_the_order_of_the_file(config):
    lines = [TALK, '{"id": "b"}', "no JSON", TALK, '{"id": "c", "prompt": "x", "max_tokens": 1.5}']
    assert [line.split("  ")[0] for line in told(config("\n".join(lines)))] == ["2", "3", "4", "5"]
    (twice,) = (line for line in told(config("\n".join(lines))) if line.startswith("4"))
    assert twice == '4  id: found "a", the id of line 1 too, expected an id of its own for each line'


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_a_problem(config, text):
    (problem,) = told(config(text))
    assert problem.startswith("1  the file: found no line with a prompt")


def test_a_file_that_cannot_be_read_is_told_by_the_line_of_the_config(config):
    misspelt = config(text=LEAST.replace("mine.jsonl", "mien.jsonl"))
    with pytest.raises(ConfigError, match=r"did you mean 'mine\.jsonl'") as caught:
        prompt_file.read(misspelt)
    assert caught.value.where == f"{misspelt.path}:3  prompts"
    for wrong in (config(b"\xff\xfe"), replace(misspelt, prompts=".")):
        with pytest.raises(ConfigError) as caught:
            prompt_file.read(wrong)
        assert caught.value.what == "the prompts file cannot be read"


def test_the_page_on_prompts_shows_lines_and_keys_that_are_read(config):
    page = PAGE.read_text(encoding="utf-8")
    lines = [line.strip() for line in page.splitlines() if line.startswith('    {"id"')]
    assert [prompt.id for prompt in prompt_file.read(config("\n".join(lines)))] == ["refund-01", "ticket-02", "code-03"]
    _, first, second, *_ = page.split("    # my-model.yaml\n")
    shown = [part[: part.index("\n\n")] for part in (first, second)]
    loaded = config(text="\n".join([LEAST.replace("prompts: mine.jsonl", ""), *map(dedent, shown)]))
    assert loaded.prompts == "my-prompts.jsonl"
    assert loaded.reasoning == Reasoning(tokens=1024, template=({"enable_thinking": True},), effort=("medium",))

"""The training text: reproducible, in the chat template of the checkpoints, with answers that end."""

from __future__ import annotations

import itertools
import json
import re

import jsonschema
import pytest

from pytest_specdec.prompts import schemas
from specdec_reference import checkpoint
from specdec_reference.tokenizer import Tokenizer
from training import corpus

TALKS = list(corpus.dialogues(3, 200))


def test_a_seed_gives_the_same_dialogues_and_another_seed_others():
    assert list(corpus.dialogues(3, 200)) == TALKS
    assert list(corpus.dialogues(4, 200)) != TALKS


def test_a_conversation_is_in_the_template_of_the_checkpoints():
    target = checkpoint.read("target")
    tokenizer = Tokenizer(target.folder, target.shape.vocabulary)
    for messages in TALKS[:20]:
        assert corpus.conversation(messages).startswith(tokenizer.format_chat(messages[:-1]))
        assert tokenizer.encode(corpus.conversation(messages))[-2] in target.shape.eos_ids


@pytest.mark.parametrize("name", schemas.SCHEMAS)
def test_objects_and_arguments_of_tools_fit_their_schema(name):
    answers = [(messages[-2]["content"], messages[-1]["content"]) for messages in TALKS]
    objects = [json.loads(answer) for question, answer in answers if question.startswith(f"Return a JSON object of a {name}:")]
    calls = [json.loads(found[1]) for _, answer in answers if (found := re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", answer))]
    fitting = objects + [call["arguments"] for call in calls if call["name"] == f"get_{name}"]
    assert len(fitting) > 3
    for instance in fitting:
        jsonschema.validate(instance, schemas.SCHEMAS[name])


def test_documents_are_the_standard_librarys():
    first = list(itertools.islice(corpus.documents(), 3))
    assert all(first)
    assert "__future__" in first[0]

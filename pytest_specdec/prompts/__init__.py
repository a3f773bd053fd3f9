"""Prompts of our own, by category; each collection makes workloads: ``CHAT.greedy(max_tokens=256)``.

They are written by the authors of pytest-specdec under its licence, but for the one of SPEED, which others publish figures for.
"""

from __future__ import annotations

from pytest_specdec.model.workload import Route
from pytest_specdec.prompts.prompts import Prompt, Prompts, load_bundled

__all__ = [
    "ALL",
    "CATEGORIES",
    "CHAT",
    "CODE",
    "COPY",
    "EDIT",
    "EXTRACT",
    "JSON_TASKS",
    "LIST",
    "LONG",
    "MATH",
    "OPEN_ENDED",
    "QA",
    "RAG",
    "REPEAT",
    "SPEED",
    "STORY",
    "SUMMARY",
    "TRANSLATE",
    "Prompt",
    "Prompts",
]

_BUNDLED = load_bundled()


def _prompts_of(category: str) -> Prompts:
    return Prompts(name=category, category=category, items=tuple(prompt for prompt in _BUNDLED if prompt.category == category))


CHAT = _prompts_of("chat")
CODE = _prompts_of("code")
"""Beginnings of Python modules, on the completions route."""
EDIT = _prompts_of("edit")
"""Code to be given back with a small change: most of the answer is in the prompt."""
STORY = _prompts_of("story")
"""Free invention: the drafter's worst case."""
JSON_TASKS = _prompts_of("json")
"""Each names a schema that its answer fits."""
MATH = _prompts_of("math")
QA = _prompts_of("qa")
SUMMARY = _prompts_of("summary")
TRANSLATE = _prompts_of("translate")
LIST = _prompts_of("list")
COPY = _prompts_of("copy")
"""Texts to be given back word by word."""
REPEAT = _prompts_of("repeat")
"""Sequences that go on as they began, on the completions route: acceptance is near 1."""
RAG = _prompts_of("rag")
"""Questions after the passages that answer them."""
EXTRACT = _prompts_of("extract")
LONG = _prompts_of("long")
"""Some 700 tokens of context each."""
CATEGORIES = Prompts.interleaved("categories", (CHAT, CODE, MATH, SUMMARY, RAG, TRANSLATE, EXTRACT, JSON_TASKS, EDIT, STORY, LONG))
"""Categories to break speed down by: the usual ones, with copying (edit), free invention (story) and long contexts."""
ALL = Prompts.interleaved("all", (CODE, CHAT, EDIT, JSON_TASKS, STORY, QA, REPEAT, MATH, LIST, COPY, SUMMARY, TRANSLATE))
"""Every category in turn, so that the first dozen is one of each."""
OPEN_ENDED = Prompts.interleaved("open-ended", (CODE, CHAT, SUMMARY))
"""Prompts whose answers go on at temperature 1."""

_VACATION = (
    "Imagine you are planning a week-long vacation to a place you've never visited before. "
    "Describe the destination, including its main attractions and cultural highlights. "
    "What activities would you prioritize during your visit? Additionally, explain how you would prepare for the trip, "
    "including any specific items you would pack and any research you would conduct beforehand. "
    "Finally, discuss how you would balance relaxation and adventure during your vacation."
)
SPEED = Prompts(
    name="vacation",
    category="chat",
    items=(
        Prompt(
            id="vacation-01",
            category="chat",
            route=Route.CHAT,
            text=_VACATION,
            provenance="default prompt of github.com/coder543/llm-speed-benchmark, for figures that can be held against published ones",
        ),
    ),
)
"""The prompt that published speedups were measured with."""

"""Names and docstrings of the package, by the measures of the house style."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import median

import pytest

PACKAGES = ["pytest_specdec", "specdec_reference"]
PARTICIPLE = re.compile(r"_*[a-z]+(ed|en|ught|old|aid|ent|ept|own)_*")
NOUNS = {"document", "environment", "judgement", "placement", "content", "seed", "feed", "text", "shutdown", "extent", "__len__"}
"""And verbs, that end as participles do."""
HOW_IT_CAME = {"found", "told", "said", "kept", "asked"}
RELATIVE = re.compile(r"\b(that|which|who|whose|where|what|whether)\b")


@pytest.fixture(scope="module", params=PACKAGES)
def nodes(request):
    paths = (Path(__file__).parents[1] / request.param).rglob("*.py")
    return [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def functions(nodes):
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_functions_begin_with_a_verb_or_are_nouns(nodes):
    names = [function.name for function in functions(nodes) if not any("property" in ast.unparse(d) for d in function.decorator_list)]
    participles = [name for name in names if PARTICIPLE.fullmatch(name) and name not in NOUNS]
    assert len(participles) <= 0.02 * len(names), sorted(participles)


def test_locals_are_named_for_the_thing(nodes):
    stores = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    assert sum(name in HOW_IT_CAME for name in stores) <= 0.001 * len(stores)


def test_docstrings_open_in_few_words_and_one_clause(nodes):
    docstrings = [docstring.split("\n\n")[0] for function in functions(nodes) if (docstring := ast.get_docstring(function))]
    assert median(len(first.split()) for first in docstrings) <= 11
    assert sum(bool(RELATIVE.search(first)) for first in docstrings) <= 0.25 * len(docstrings)

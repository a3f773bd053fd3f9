"""The capability matrix is what the stored outcomes of the contract generate, and says of each column how it is known."""

from __future__ import annotations

import copy
import json

from benchmarks import capabilities


def test_the_page_is_what_the_command_writes():
    written = capabilities.PAGE.read_text(encoding="utf-8")
    assert written == capabilities.page(capabilities.stored()), "run: python -m benchmarks.capabilities"


def test_an_outcome_that_changes_changes_its_cell():
    documents = [document for document in capabilities.stored() if document["engine"] == "reference"]
    changed = copy.deepcopy(documents)
    clause = next(held for held in changed[0]["arms"][0]["clauses"] if held["name"] == "token ids")
    clause["outcome"] = "broken"
    changed[0]["arms"][1]["survey"]["support"]["top_k"] = "ignored"
    page = capabilities.page(changed)
    assert "| token ids | **broken** / kept |" in page
    assert "| `top_k` | yes / **ignored** |" in page
    assert "**broken** /" not in capabilities.page(documents)


def test_no_folder_of_a_machine_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(capabilities, "FOLDER", tmp_path)
    for model, shown in (("/home/me/x/target", "target"), ("../x/target.gguf", "target.gguf"), ("Qwen/Qwen3-32B", "Qwen/Qwen3-32B")):
        outcome = {"engine": "e", "version": "1", "arms": [{"evidence": f"a completion after 0.4 s, model {model}"}]}
        stored = json.loads(capabilities.store(json.dumps(outcome), capabilities.SEEN).read_text())
        assert stored["arms"][0]["evidence"] == f"a completion after 0.4 s, model {shown}"


def test_every_column_is_a_real_engine_or_a_double_and_has_every_clause():
    names = set(capabilities.clauses())
    documents = capabilities.stored()
    assert {document["evidence"] for document in documents} == {"seen", "read"}
    for document in documents:
        held = {held["name"] for arm in document["arms"] for held in arm["clauses"]}
        assert held == names, f"{document['engine']} {document['version']}: hold its contract again (docs/adding-an-engine.md)"
        assert (document["evidence"] == "read") == document["config"].endswith("-double")

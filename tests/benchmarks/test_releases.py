"""The command that judges releases: what it runs, what it stores, and what it leaves for the next time."""

from __future__ import annotations

import json

import pytest

from benchmarks import release_pages, releases
from benchmarks.releases import ENGINES, SCRIPTS, judge, release_config, without_folders
from pytest_specdec.config import load
from pytest_specdec.files import yaml


class Machine:
    """Stands for bash and pytest: writes what a command would leave."""

    def __init__(self, folder) -> None:
        self.folder, self.commands, self.broken = folder, [], set()

    def __call__(self, command, log, accepted) -> bool:
        name = "bash" if command[0] == "bash" else next(word for word in command if word.startswith("[")).strip("[]")
        self.commands.append(name)
        log.write_text(f"{releases.ROOT}/x\n{name}: the last line\n")
        if name == "bash":
            (self.folder / "environments/vllm-0.31.0").mkdir(parents=True, exist_ok=True)
        elif name not in self.broken:
            run = self.folder / f"runs/vllm-0.31.0-{name}"
            run.mkdir(parents=True)
            (run / "run.json").write_text(json.dumps({"judged": True, "log": f"{releases.ROOT}/servers"}))
        return name not in self.broken


@pytest.fixture
def machine(tmp_path, monkeypatch):
    machine = Machine(tmp_path)
    monkeypatch.setattr(releases, "_log", machine)
    monkeypatch.setattr(releases, "FOLDER", tmp_path)
    monkeypatch.setattr(releases, "write_checkpoints", lambda _: None)
    monkeypatch.setattr(release_pages, "RUNS", tmp_path / "stored")
    monkeypatch.setattr(releases, "ROOT", tmp_path)
    return machine


VARIANTS = ["ngram-k3", "draft-k3", "draft-prob-k3", "eagle3-k3"]


def stored(machine):
    return sorted(path.name for path in (machine.folder / "stored").iterdir())


def test_every_variant_of_a_release_is_run_and_stored_without_the_folders_of_the_machine(machine):
    assert judge("vllm", "0.31.0", [], "smoke") == []
    assert machine.commands == ["bash", *VARIANTS]
    assert stored(machine) == sorted(f"vllm-0.31.0-{variant}.json" for variant in VARIANTS)
    assert json.loads((machine.folder / "stored/vllm-0.31.0-draft-k3.json").read_text())["log"] == "servers"
    assert not (machine.folder / "environments/vllm-0.31.0").exists()


def test_what_is_stored_is_not_run_again_and_the_environment_stays_until_all_is(machine):
    judge("vllm", "0.31.0", ["draft-k3"], "smoke")
    assert (machine.folder / "environments/vllm-0.31.0").exists()
    machine.commands.clear()
    judge("vllm", "0.31.0", [], "smoke")
    assert machine.commands == ["bash", "ngram-k3", "draft-prob-k3", "eagle3-k3"]
    machine.commands.clear()
    assert judge("vllm", "0.31.0", [], "smoke") == []
    assert machine.commands == []


def test_a_release_that_cannot_be_installed_leaves_the_end_of_its_log(machine):
    machine.broken.add("bash")
    assert judge("vllm", "0.31.0", ["draft-k3"], "smoke") == ["vllm 0.31.0 draft-k3"]
    assert machine.commands == ["bash"]
    assert stored(machine) == ["vllm-0.31.0.txt"]
    assert (machine.folder / "stored/vllm-0.31.0.txt").read_text() == "x\nbash: the last line\n"
    assert not (machine.folder / "environments/vllm-0.31.0").exists()


def test_a_variant_without_a_verdict_does_not_keep_the_others_from_theirs(machine):
    machine.broken.add("draft-k3")
    assert judge("vllm", "0.31.0", [], "smoke") == ["vllm 0.31.0 draft-k3"]
    assert len(stored(machine)) == 4
    assert "vllm-0.31.0.txt" in stored(machine)
    machine.broken.clear()
    judge("vllm", "0.31.0", [], "smoke")
    assert stored(machine) == sorted(f"vllm-0.31.0-{variant}.json" for variant in VARIANTS)


@pytest.mark.parametrize("name", ENGINES)
def test_the_config_of_a_release_is_the_engines_in_another_environment(name, tmp_path):
    engine = ENGINES[name]
    assert (SCRIPTS / f"{engine.kind}.sh").is_file()
    path = tmp_path / "release.yaml"
    path.write_text(yaml.dump(release_config(engine, "1.2.3")))
    config = load.load(path)
    assert config.engine.kind == engine.kind
    assert tuple(variant.name for variant in config.variants) == engine.variants
    assert {config.engine.venv, config.engine.executable} & {
        f"environments/{engine.kind}-1.2.3",
        f"environments/{engine.kind}-1.2.3/{engine.executable}",
    }


def test_the_errors_of_the_servers_stand_before_the_end_of_the_log(tmp_path):
    (tmp_path / "log").write_text("collected\n1 error\n")
    (tmp_path / "server").write_text("INFO up\nTypeError: no such kernel\nINFO down\n")
    assert releases._describe_failure([tmp_path / "log", tmp_path / "server"]) == "TypeError: no such kernel\ncollected\n1 error\n"


def test_paths_of_this_machine_are_left_out():
    assert without_folders(f"{releases.ROOT}/.specdec/x in {releases.Path.home()}/.cache") == ".specdec/x in ~/.cache"

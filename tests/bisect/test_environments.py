"""Environments of releases: made once, made anew after an interrupt, removed for want of space, and the config's word on them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from pytest_specdec.bisect import environments as rooms
from pytest_specdec.bisect.environments import Environments, environment_command
from pytest_specdec.config.load import load
from pytest_specdec.errors import ConfigError, EngineError

FOREVER = float("inf")
CONFIG = "engine: {{kind: reference, model: target, {}}}\nvariants: {{v: {{args: {{speculative-config: {{method: ngram}}}}}}}}\n"


@pytest.fixture
def made(tmp_path):
    def environments(script='mkdir "{folder}" && echo {version} >> made && echo "$SPECDEC_VERSION" > "$SPECDEC_ENVIRONMENT/name"', gib=1.0):
        command = ("sh", "-c", script)
        return Environments(root=tmp_path / "environments", command=command, start=tmp_path, most_gib=gib)

    return environments


def names(tmp_path):
    return (tmp_path / "made").read_text().split()


def test_a_release_is_made_once_in_the_folder_of_the_config(made, tmp_path):
    environments = made()
    for _ in range(2):
        environments.make("1.0", tmp_path / "log", FOREVER)
    assert names(tmp_path) == ["1.0"]
    assert (environments.folder("1.0") / "name").read_text() == "1.0\n"
    assert environments.variables("1.0") == {"SPECDEC_VERSION": "1.0", "SPECDEC_ENVIRONMENT": str(environments.folder("1.0"))}


def test_a_folder_that_was_removed_by_hand_is_made_again(made, tmp_path):
    environments = made()
    environments.make("1.0", tmp_path / "log", FOREVER)
    shutil.rmtree(environments.folder("1.0"))
    environments.make("1.0", tmp_path / "log", FOREVER)
    assert (environments.folder("1.0") / "name").read_text() == "1.0\n"


def test_a_removed_folder_is_not_complete_before_its_command_ends(made, tmp_path):
    """A session that is killed meanwhile leaves half of it."""
    made().make("1.0", tmp_path / "log", FOREVER)
    shutil.rmtree(tmp_path / "environments/1.0")
    made('test ! -e "{folder}.complete" && mkdir "{folder}"').make("1.0", tmp_path / "log", FOREVER)
    assert (tmp_path / "environments/1.0").is_dir()


def test_a_folder_that_an_interrupt_has_left_is_made_anew(made, tmp_path):
    environments = made()
    environments.folder("1.0").mkdir(parents=True)
    (environments.folder("1.0") / "half").touch()
    environments.make("1.0", tmp_path / "log", FOREVER)
    assert [path.name for path in environments.folder("1.0").iterdir()] == ["name"]


@pytest.mark.parametrize("script, found", [
    ("echo no wheel; exit 3", "exit code 3\nno wheel"),
    ("true", "exit code 0 and no folder"),
])  # fmt: skip
def test_a_command_that_fails_is_one_error_with_its_last_lines(made, tmp_path, script, found):
    with pytest.raises(EngineError, match=r"no environment for 1\.0") as caught:
        made(script).make("1.0", tmp_path / "log", FOREVER)
    assert caught.value.found == found
    assert not list(tmp_path.glob("environments/*.complete"))


def test_a_command_that_is_not_there_is_the_same_error(tmp_path):
    environments = Environments(root=tmp_path / "environments", command=("./none",), start=tmp_path, most_gib=1.0)
    with pytest.raises(EngineError, match=r"no environment for 1\.0") as caught:
        environments.make("1.0", tmp_path / "log", FOREVER)
    assert caught.value.found == "./none: No such file or directory"


def test_the_least_recently_used_go_when_the_disk_bound_is_reached(made, tmp_path):
    environments = made('mkdir "{folder}" && echo {version} >> made && head -c 4000 /dev/zero > "{folder}/file"', gib=9000 / 2**30)
    for release in ("1", "2", "1", "3", "1", "2"):
        environments.make(release, tmp_path / "log", FOREVER)
    assert names(tmp_path) == ["1", "2", "3", "2"]
    assert sorted(path.name for path in environments.root.iterdir()) == ["1", "1.complete", "2", "2.complete"]


def test_a_command_that_fails_leaves_no_folder_that_no_bound_counts(made, tmp_path):
    environments = made('mkdir "{folder}" && head -c 4000 /dev/zero > "{folder}/file" && exit 3')
    with pytest.raises(EngineError, match=r"no environment for 1\.0"):
        environments.make("1.0", tmp_path / "log", FOREVER)
    assert list(environments.root.iterdir()) == []


def test_the_environment_in_use_stays_whatever_its_size(made, tmp_path):
    environments = made('mkdir "{folder}" && head -c 4000 /dev/zero > "{folder}/file"', gib=1e-9)
    environments.make("1", tmp_path / "log", FOREVER)
    environments.make("2", tmp_path / "log", FOREVER)
    assert [path.name for path in environments.root.iterdir() if path.is_dir()] == ["2"]


@pytest.fixture
def config(tmp_path):
    def written(engine):
        path = tmp_path / "gate.yaml"
        path.write_text(CONFIG.format(engine))
        return load(path)

    return written


def test_the_configs_command_makes_environments_with_its_variables_filled_in(config):
    settings = "venv: '${SPECDEC_ENVIRONMENT}', environment: [sh, '${HERE}/make.sh', '{version}', '{folder}']"
    assert environment_command(config(settings), {"HERE": "/x"}) == ("sh", "/x/make.sh", "{version}", "{folder}")


def test_a_config_that_takes_the_name_alone_needs_no_environment(config, tmp_path):
    assert environment_command(config("image: 'vllm:v${SPECDEC_VERSION}'"), {}) == ()
    environments = Environments(root=tmp_path / "environments", command=(), start=tmp_path, most_gib=1.0)
    environments.make("1.0", tmp_path / "log", FOREVER)
    assert environments.variables("1.0") == {"SPECDEC_VERSION": "1.0"}
    assert not environments.root.exists()


def test_the_shipped_command_of_the_engine_is_the_default(config, tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "_SCRIPTS", tmp_path)
    with pytest.raises(EngineError, match="no command makes an environment for reference") as caught:
        environment_command(config("venv: '${SPECDEC_ENVIRONMENT}'"), {})
    assert caught.value.found == "no engine.environment; shipped for no engine"
    (tmp_path / "reference.sh").touch()
    assert environment_command(config("venv: '${SPECDEC_ENVIRONMENT}'"), {}) == (
        *("bash", str(tmp_path / "reference.sh"), "{version}", "{folder}"),
    )


def test_a_config_of_two_engines_is_one_error(config):
    """Every trial would judge both, and come to no answer for one."""
    one = config("image: 'vllm:v${SPECDEC_VERSION}'")
    with pytest.raises(ConfigError, match="the config names two engines"):
        environment_command(replace(one, old=one.engine), {})


def test_a_config_that_is_the_same_for_every_release_is_one_error(config):
    with pytest.raises(ConfigError, match="the config is the same for every release") as caught:
        environment_command(config("venv: /opt/venv"), {})
    assert "venv: ${SPECDEC_ENVIRONMENT}" in caught.value.expected

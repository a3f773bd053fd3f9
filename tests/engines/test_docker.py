"""The command line of a container, the settings that it is made from, and a daemon that is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.config import load
from pytest_specdec.engines import docker
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import ConfigError, EngineError
from pytest_specdec.files.secrets import Secrets

IMAGE = "org/server:v1.2"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home directory, and an environment without what the machine happens to have."""
    names = ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "XDG_CACHE_HOME", "CUDA_VISIBLE_DEVICES", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    for name in (*names, "TIKTOKEN_ENCODINGS_BASE", "VLLM_CACHE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def config(tmp_path):
    """Load a config whose engine has the given settings of docker."""

    def loaded(settings="{}", kind="vllm", image=IMAGE):
        path = tmp_path / "c.yaml"
        engine = f"  kind: {kind}\n  model: org/model\n  image: {image}\n  docker: {settings}\n"
        path.write_text(f"engine:\n{engine}variants: {{v: {{args: {{spec-method: ngram, spec-tokens: 3}}}}}}\n")
        return load.load(path)

    return loaded


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Put a ``docker`` on PATH that answers as its daemon does, or as its client does without one."""

    def install(complaint="", code=1):
        program = tmp_path / "bin" / "docker"
        program.parent.mkdir()
        answer = f"echo '{complaint}' >&2; exit {code}" if complaint else "echo 27.3.1"
        program.write_text(f'#!/bin/sh\n[ "$1" = version ] || exit 9\n{answer}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return install


def command(config, *, argv=("serve",), env=None, **options):
    return docker.command(config, argv, env=env or {}, secrets=Secrets(), **options)


def values(argv, option):
    """Return the values of ``option`` in a command line."""
    return [argv[index + 1] for index, word in enumerate(argv) if word == option]


def test_a_container_gets_what_every_engine_needs(config):
    made = command(config(), argv=("serve", "m", "--port", "1"))
    argv = made.argv
    assert argv[:3] == ("docker", "run", "--rm")
    assert argv[argv.index(IMAGE) :] == (IMAGE, "serve", "m", "--port", "1")
    assert (values(argv, "--network"), values(argv, "--ipc"), values(argv, "--gpus")) == (["host"], ["host"], ["all"])
    assert values(argv, "--ulimit") == ["memlock=-1", "stack=67108864"]
    (name,) = values(argv, "--name")
    assert made.stop == ("docker", "stop", "--time", "20", name)
    assert made.kill == ("docker", "kill", name)
    assert made.running == ("docker", "ps", "--quiet", "--filter", f"name=^/?{name}$")
    assert made.container == name
    assert docker.is_name(name)
    assert made.look == ("docker", "exec", name, "sh", "-c", "ls -l /proc/[0-9]*/fd")
    assert "--entrypoint" not in argv


def test_no_value_of_a_variable_is_on_the_command_line(config, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret_of_the_user")
    made = command(config(), env={"VLLM_API_KEY": "key-of-the-server", "A": "1"})
    assert {"VLLM_API_KEY", "A", "HF_TOKEN"} <= set(values(made.argv, "--env"))
    assert not any("=" in value for value in values(made.argv, "--env"))
    assert "secret" not in str(made)
    assert "key-of" not in str(made)
    assert made.env["VLLM_API_KEY"] == "key-of-the-server"


def test_caches_are_kept_under_the_users_own_even_before_there_are_any(config, home):
    made = command(config(), caches={"SOME_CACHE": ".cache/some"})
    folders = {
        "HF_HOME": f"{home}/.cache/huggingface",
        "TORCHINDUCTOR_CACHE_DIR": f"{home}/.cache/pytest-specdec/torchinductor",
        "TRITON_CACHE_DIR": f"{home}/.cache/pytest-specdec/triton",
        "SOME_CACHE": f"{home}/.cache/pytest-specdec/some",
    }
    assert {name: made.env[name] for name in folders} == folders
    assert {f"{folder}:{folder}" for folder in folders.values()} <= set(values(made.argv, "--volume"))
    assert made.folders == tuple(folders.values())
    assert not home.exists(), "making a command makes no folder"


def test_a_cache_stands_where_the_environment_or_the_config_says(config, monkeypatch):
    monkeypatch.setenv("HF_HOME", "/big/hf")
    monkeypatch.setenv("HF_HUB_CACHE", "/big/hub")
    made = command(config(), env={"TRITON_CACHE_DIR": "/fast/triton"})
    assert {"/big/hf:/big/hf", "/big/hub:/big/hub", "/fast/triton:/fast/triton"} <= set(values(made.argv, "--volume"))
    assert made.env["HF_HUB_CACHE"] == "/big/hub"


def test_caches_follow_the_users_own_folder_for_them(config, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    made = command(config())
    assert (made.env["HF_HOME"], made.env["TRITON_CACHE_DIR"]) == ("/caches/huggingface", "/caches/pytest-specdec/triton")


def test_a_volume_of_the_config_takes_a_caches_place(config, tmp_path):
    (tmp_path / "hf").mkdir()
    made = command(config("{volumes: {./hf: /root/.cache/huggingface}, options: ['-v tri:/root/.triton/cache']}"))
    assert f"{tmp_path}/hf:/root/.cache/huggingface" in values(made.argv, "--volume")
    assert "HF_HOME" not in made.env
    assert "TRITON_CACHE_DIR" not in made.env
    assert "TORCHINDUCTOR_CACHE_DIR" in made.env
    joined = command(config("{options: ['-vtri:/root/.triton/cache', --volume=ind:/root/.cache/torchinductor]}"))
    assert not {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"} & set(joined.env)


def test_encodings_are_mounted_where_they_lie_and_a_url_is_passed_on(config, tmp_path, monkeypatch):
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path))
    made = command(config())
    assert f"{tmp_path}:{tmp_path}:ro" in values(made.argv, "--volume")
    assert made.env["TIKTOKEN_ENCODINGS_BASE"] == str(tmp_path)
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", "https://host/encodings")
    made = command(config())
    assert "TIKTOKEN_ENCODINGS_BASE" in values(made.argv, "--env")
    assert not [volume for volume in values(made.argv, "--volume") if "host/enc" in volume]


@pytest.mark.parametrize(
    "settings, visible, env, gpus",
    [
        ("{}", None, {}, ["all"]),
        ("{}", "1", {}, ["device=1"]),
        ("{}", "0,2", {}, ['"device=0,2"']),
        ("{}", "", {}, []),
        ("{}", "1", {"CUDA_VISIBLE_DEVICES": "3"}, ["all"]),
        ("{gpus: all}", "1", {}, ["all"]),
        ("{gpus: none}", None, {}, []),
        ("{gpus: []}", None, {}, []),
        ("{gpus: [0, 1]}", None, {}, ['"device=0,1"']),
        ("{gpus: [GPU-3a]}", None, {}, ["device=GPU-3a"]),
        ("{gpus: count=2}", None, {}, ["count=2"]),
        ("{options: [--gpus=2]}", None, {}, []),
    ],
)
def test_a_server_gets_the_devices_that_it_may_use(settings, visible, env, gpus, *, config, monkeypatch):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    argv = command(config(settings), env=env).argv
    assert values(argv, "--gpus") == gpus
    assert not values(command(config(settings), env=env, accelerator=False).argv, "--gpus")


@pytest.mark.parametrize(
    "options, gone, stays",
    [
        ("[--shm-size=16g]", "--ipc", "--ulimit"),
        ("['--ipc private']", None, "--ulimit"),
        ("[--ulimit, memlock=1, '--ulimit=stack=2']", "--ulimit stack=67108864", "--ipc"),
    ],
)
def test_an_option_of_the_config_replaces_ours(options, gone, stays, *, config):
    argv = command(config(f"{{options: {options}}}")).argv
    before = argv[: argv.index(IMAGE)]
    assert stays in before
    assert gone is None or gone not in " ".join(before)
    assert len(values(before, "--ipc")) <= 1


def test_the_program_in_the_image_is_the_adapters_or_the_configs(config):
    assert values(command(config(), entrypoint="server").argv, "--entrypoint") == ["server"]
    assert values(command(config("{entrypoint: /opt/bin/server}"), entrypoint="server").argv, "--entrypoint") == ["/opt/bin/server"]


@pytest.mark.parametrize(
    "option, reason",
    [
        ("--name=x", "by which it is stopped"),
        ("--rm", "removed at its end"),
        ("-d", "ends with its client"),
        ("--detach", "ends with its client"),
        ("--network bridge", "the host's network"),
        ("--net=host", "the host's network"),
        ("--publish 1:2", "the host's network"),
        ("--publish-all", "the host's network"),
        ("-P", "the host's network"),
        ("-p 8000:8000", "the host's network"),
        ("-p8000:8000", "the host's network"),
        ("-it", "no terminal"),
        ("-Pv/a:/b", "the host's network"),
        ("-teTOKEN=abc", "reaches no command line"),
        ("-i", "no terminal"),
        ("--interactive", "no terminal"),
        ("--tty", "no terminal"),
        ("--restart=always", "started again by the capture"),
        ("--entrypoint=x", "engine.docker.entrypoint"),
        ("-e TOKEN=abc", "reaches no command line"),
        ("--env=TOKEN=abc", "reaches no command line"),
        ("--label 'x", "close its quotes"),
    ],
)
def test_an_option_that_would_take_the_container_from_us_is_refused_with_its_line(option, reason, *, config):
    with pytest.raises(ConfigError) as caught:
        config(f'{{options: [--init, "{option}"]}}')
    assert "c.yaml:5  engine.docker.options[1]: found" in caught.value.what
    assert reason in caught.value.what
    assert "abc" not in caught.value.what


@pytest.mark.parametrize(
    "option", ["--shm-size=16g", "-e TOKEN", "--env TOKEN", "--pid=host", "-u 1000", "--device=/dev/kfd", "--label it", "-v/it:/p=e"]
)
def test_other_options_are_passed_on_word_by_word(option, config):
    argv = command(config(f"{{options: ['{option}']}}")).argv
    words = option.split()
    at = argv.index(IMAGE)
    assert list(argv[at - len(words) : at]) == words


def test_a_variable_split_over_two_items_is_seen(config):
    with pytest.raises(ConfigError, match=r"options\[1\].*reaches no command line"):
        config("{options: [--env, TOKEN=abc]}")


NO_DAEMON = {"DOCKER_HOST": "unix:///nonexistent/docker.sock", "PATH": os.environ["PATH"]}


def said(argv):
    """What the real ``docker`` says to a command line that no daemon will see."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, env=NO_DAEMON, check=False).stderr


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker's own parser reads the command line")
@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt_llm", "arctic", "llama_cpp"])
@pytest.mark.parametrize(
    "settings",
    ["{}", "{gpus: [0, 1], entrypoint: /bin/server, options: [--shm-size=16g, -u 1000, --cap-add=SYS_PTRACE], volumes: {/tmp: /data}}"],
)
def test_dockers_own_parser_takes_every_engines_command(kind, settings, config, monkeypatch):
    """It parses before it looks for its daemon, which is not there."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    made = engine_of(kind).command(config(settings, kind=kind), setup(api_key="k" * 8))
    for argv in (made.argv, made.stop, made.kill):
        assert "Cannot connect to the Docker daemon" in said(argv), argv
    assert "unknown flag" in said([*made.argv[:2], "--no-such-option", *made.argv[2:]])


def test_settings_of_docker_want_an_image(tmp_path):
    (tmp_path / "c.yaml").write_text("engine: {kind: vllm, model: m, docker: {gpus: all}}\nvariants: {v: {}}\n")
    with pytest.raises(ConfigError, match=r"engine\.docker: found settings of docker without an image"):
        load.load(tmp_path / "c.yaml")


def test_a_daemon_that_answers_is_enough(config, daemon):
    daemon()
    docker.check(config())
    engine_of("vllm").check(config())


@pytest.mark.parametrize(
    "complaint, remedy",
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "systemctl start docker"),
        ("permission denied while trying to connect to the Docker daemon socket", "usermod -aG docker"),
    ],
)
def test_a_daemon_that_is_not_there_is_one_error(complaint, remedy, *, config, daemon):
    daemon(complaint)
    for check in (docker.check, engine_of("vllm").check):
        with pytest.raises(EngineError, match="the Docker daemon does not answer") as caught:
            check(config())
        assert caught.value.found == complaint
        assert remedy in caught.value.remedy


def test_a_daemon_that_says_nothing_is_not_waited_for_for_ever(config, daemon, tmp_path, monkeypatch):
    daemon()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(docker, "_ANSWER_S", 0.1)
    with pytest.raises(EngineError, match="the Docker daemon does not answer") as caught:
        docker.check(config())
    assert "timed out" in caught.value.found


@pytest.mark.parametrize(
    "volumes, found, hint",
    [
        ("{./nowhere: /models}", "no folder {here}/nowhere", "make it"),
        ("{/nowhere/at/all: /models}", "no folder /nowhere/at/all", "make it"),
        ("{models: /models}", "models", "--volume=models:/models"),
        ("{.: models}", "models, expected an absolute path in the container", ""),
    ],
)
def test_a_volume_that_is_not_there_is_refused_with_its_line(volumes, found, hint, *, config, daemon, tmp_path):
    daemon()
    with pytest.raises(ConfigError) as caught:
        docker.check(config(f"{{volumes: {volumes}}}"))
    assert "c.yaml:5  engine.docker.volumes." in caught.value.what
    assert f"found {found.format(here=tmp_path)}" in caught.value.what
    assert hint in caught.value.what


def test_volumes_of_the_config_are_mounted_from_absolute_paths(config, tmp_path):
    argv = command(config("{volumes: {.: '/models:ro', ~: /home-of-the-user}}".replace("~:", "'~':"))).argv
    assert f"{tmp_path}:/models:ro" in values(argv, "--volume")
    assert f"{Path.home()}:/home-of-the-user" in values(argv, "--volume")


def setup(**fields):
    return ServerSetup(**{"model": "org/model", "port": 8001, "secrets": Secrets(), **fields})


def test_vllm_runs_in_every_image_of_its_own_as_it_does_without_one(config, home):
    made = engine_of("vllm").command(config(image="vllm/vllm-openai:v0.10.2"), setup(api_key="k" * 8))
    argv = made.argv
    assert values(argv, "--entrypoint") == ["vllm"]
    assert argv[argv.index("vllm/vllm-openai:v0.10.2") + 1 :][:4] == ("serve", "org/model", "--host", "127.0.0.1")
    assert made.env["VLLM_CACHE_ROOT"] == f"{home}/.cache/pytest-specdec/vllm"
    assert "k" * 8 not in argv


def test_an_image_for_the_cpu_asks_for_no_devices(config):
    assert not values(engine_of("vllm").command(config(image="org/vllm-cpu:v0.32.0"), setup()).argv, "--gpus")
    assert values(engine_of("vllm").command(config(), setup()).argv, "--gpus") == ["all"]


def test_a_model_beside_the_config_is_looked_for_and_mounted(config, daemon, tmp_path):
    daemon()
    here = replace(config(), engine=replace(config().engine, model="./model"))
    with pytest.raises(EngineError, match="the model is not there"):
        engine_of("vllm").check(here)
    (tmp_path / "model").mkdir()
    engine_of("vllm").check(here)
    argv = engine_of("vllm").command(here, setup(model="./model")).argv
    assert f"{tmp_path}/model:{tmp_path}/model:ro" in values(argv, "--volume")

"""The command that runs a server in a Docker container, those that end it by name, and what has to be there first."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from pytest_specdec.config import validate
from pytest_specdec.config.docker_settings import option_values
from pytest_specdec.engines import locate
from pytest_specdec.engines.protocol import Command
from pytest_specdec.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_specdec.config.config import Config, DockerSettings
    from pytest_specdec.config.validate import Problem
    from pytest_specdec.files.secrets import Secrets

_ANSWER_S = 20.0
"""Seconds for the daemon to answer."""
_NAME = re.compile(r"specdec-[0-9a-f]{12}")
"""The name of every container that is started here."""
_SHARED_MEMORY, _LIMITS = ("--ipc", "host"), {"memlock": "-1", "stack": "67108864"}
"""Shared memory and locked memory as the images of all engines ask for them."""
_HUB = {"HF_HOME": ".cache/huggingface"}
_HUB_CACHE = "HF_HUB_CACHE"
_COMPILED = {"TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor", "TRITON_CACHE_DIR": ".triton/cache"}
"""Variables of cache folders, and the default place of each under a home directory."""
_TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
_FOLDERS = ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR")
"""Variables of this machine that hold in the container too; if one names a folder, that is mounted."""
_DEVICES = "CUDA_VISIBLE_DEVICES"
_NO_DEVICES = {"", "-1", "none"}


def is_name(text: str) -> bool:
    """Return True if ``text`` can name a container started here."""
    return bool(_NAME.fullmatch(text))


def kill(name: str) -> tuple[str, ...]:
    """Return the command to kill the container ``name``."""
    return ("docker", "kill", name)


def running(name: str) -> tuple[str, ...]:
    """Return the command to look for the container ``name``.

    It prints the container's id while it runs, and nothing once it is gone.
    """
    return ("docker", "ps", "--quiet", "--filter", f"name=^/?{name}$")


def check(config: Config) -> None:
    """Raise an error if docker or a configured volume is unusable.

    It is an EngineError if docker is missing, then a ConfigError if a volume's folder is missing or its path is invalid,
    then an EngineError if the daemon does not answer. Whether the image exists is not checked.
    """
    image = f"engine.image: {config.engine.image}"
    locate.require_program(
        shutil.which("docker"), image, "`docker` on PATH", "install docker, or name a venv or an executable instead of an image"
    )
    if problems := list(_volume_problems(config)):
        raise validate.error(problems)
    if complaint := _daemon_complaint():
        denied = "permission denied" in complaint.lower()
        raise EngineError(
            what="the Docker daemon does not answer",
            where=image,
            found=complaint,
            expected="the version of a daemon, as `docker version` prints it",
            remedy="add yourself to the group: sudo usermod -aG docker $USER" if denied else "start it: sudo systemctl start docker",
        )


def _daemon_complaint() -> str:
    """Return the reason no Docker daemon answers; empty if one does."""
    argv = ("docker", "version", "--format", "{{.Server.Version}}")
    try:
        result = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return "" if result.returncode == 0 else next(iter(lines[-1:]), f"exit code {result.returncode}")


def _volume_problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of the config's volumes.

    The host's path has to look like a path and to exist, the container's path has to be absolute.
    """
    document = config.document()
    for host, path in config.engine.docker.volumes.items():
        where, folder = ("engine", "docker", "volumes", host), _host_path(config, host)
        if not host.startswith((".", "/", "~")):
            hint = f"./{host} for a folder beside the config; a volume of Docker's own goes into options: --volume={host}:{path}"
            yield validate.problem(document, where, host, "a path", hint)
        elif not folder.exists():
            yield validate.problem(document, where, f"no folder {folder}", "a folder of this machine", "make it, or correct the path")
        if not path.startswith("/"):
            yield validate.problem(document, where, path, "an absolute path in the container")


def _host_path(config: Config, path: str) -> Path:
    return Path(os.path.abspath(config.path.parent / Path(path).expanduser()))  # noqa: PTH100 - resolve() would follow links


def command(
    config: Config,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    secrets: Secrets,
    entrypoint: str = "",
    folders: Sequence[str] = (),
    caches: Mapping[str, str] | None = None,
    accelerator: bool = True,
) -> Command:
    """Return the command to run ``argv`` in the config's image.

    The container uses the host's network. Its program is the config's entrypoint, else ``entrypoint``, the engine's own; without
    both, the image decides what runs ``argv``. ``folders`` are models and files, mounted read-only at their own paths, as are the
    folders that some variables of this machine name. ``caches`` are further variables of cache folders, each with its default place
    under a home directory; these folders are mounted from this machine and kept between boots. Variables, the hub's token among
    them, are passed by name, so that no command line holds their values. Without ``accelerator`` the container gets no GPU.
    """
    settings, name = config.engine.docker, f"specdec-{uuid.uuid4().hex[:12]}"
    cache_folders = _cache_folders(settings, env, {**_HUB, **_COMPILED, **(caches or {})})
    # Variables that name folders to be mounted, read-only.
    folder_variables = {variable: value for variable in _FOLDERS if (value := _configured_value(variable, env))}
    volumes = _volumes(config, cache_folders.values(), (*folders, *_existing_folders(folder_variables)))
    # The server's variables come before those of this machine. A cache's variable has the folder that is mounted.
    environment = {**folder_variables, **env, **cache_folders}
    program = settings.entrypoint or entrypoint
    # An option `--env NAME` without a value takes it from the environment of `docker run`.
    options = [
        *("--rm", "--name", name, "--network", "host"),
        *_resource_options(settings, env, accelerator=accelerator),
        *(word for variable in (*environment, _TOKEN) for word in ("--env", variable)),
        *(word for volume in volumes for word in ("--volume", volume)),
        *(("--entrypoint", program) if program else ()),
        *settings.options,
    ]
    return Command(
        argv=("docker", "run", *options, str(config.engine.image), *argv),
        env=environment,
        folders=tuple(cache_folders.values()),
        stop=("docker", "stop", "--time", str(round(config.limits.stop_s)), name),
        kill=kill(name),
        running=running(name),
        container=name,
        look=("docker", "exec", name, "sh", "-c", "ls -l /proc/[0-9]*/fd"),  # open sockets show whose port it is
        secrets=secrets,
    )


def _volumes(config: Config, cache_folders: Iterable[str], folders: Sequence[str]) -> list[str]:
    """Return the values of ``--volume``: the config's volumes, caches, and ``folders``.

    The last are mounted read-only, unless one is a cache too. They and the caches have the same path inside as outside.
    """
    caches = dict.fromkeys(cache_folders)  # without repetitions, in order
    return [
        *(f"{_host_path(config, host)}:{path}" for host, path in config.engine.docker.volumes.items()),
        *(f"{folder}:{folder}" for folder in caches),
        *(f"{folder}:{folder}:ro" for folder in dict.fromkeys(folders) if folder not in caches),
    ]


def _cache_folders(settings: DockerSettings, env: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Return the caches' folders to mount, by the variable that names each.

    ``env`` are the server's variables; ``places`` are the programs' default folders under a home directory, by variable. A cache that
    lies in a volume of the config is left out, since that volume is mounted already.
    """
    # The paths of the config's volumes in the container. A cache is at its host path there too, or at its default place.
    volume_targets = tuple(_volume_targets(settings))
    return {
        variable: host for variable, host in _cache_variables(env, places) if not _is_covered(host, places.get(variable), volume_targets)
    }


def _resource_options(settings: DockerSettings, env: Mapping[str, str], *, accelerator: bool) -> Iterator[str]:
    """Yield the options for devices, shared memory and limits.

    Those that the config states itself are left out. ``env`` are the server's variables. Without ``accelerator`` no devices are asked for.
    """
    stated_options = set(settings.options) | {word.partition("=")[0] for word in settings.options if word.startswith("--")}
    if accelerator and "--gpus" not in stated_options and (devices := _gpus_option_value(settings.gpus, env)):
        yield from ("--gpus", devices)
    if not stated_options & {"--ipc", "--shm-size"}:
        yield from _SHARED_MEMORY
    stated_limits = {value.partition("=")[0] for value in option_values(settings.options, "--ulimit")}
    for limit, value in _LIMITS.items():
        if limit not in stated_limits:
            yield from ("--ulimit", f"{limit}={value}")


def _gpus_option_value(setting: str, env: Mapping[str, str]) -> str:
    """Return the value of ``--gpus``; empty for none.

    The config's ``setting`` comes first. Without it, a server with a ``CUDA_VISIBLE_DEVICES`` of its own, in ``env``,
    gets all devices, since it chooses among them itself. Any other gets those of our own ``CUDA_VISIBLE_DEVICES``, or
    all if that is not set. Numbers and ids become ``device=…``; a setting with an equals sign is such a value already.
    """
    selection = setting or ("all" if _DEVICES in env else os.environ.get(_DEVICES, "all"))
    if selection.strip() in _NO_DEVICES:
        return ""
    if selection == "all" or "=" in selection:
        return selection
    devices = f"device={selection}"
    return f'"{devices}"' if "," in selection else devices  # docker reads the value as CSV, in which quotes keep a comma


def _configured_value(variable: str, env: Mapping[str, str]) -> str:
    """Return a variable's value from the config or our environment.

    The config comes first. Returns an empty string if neither sets it.
    """
    return env.get(variable) or os.environ.get(variable) or ""


def _cache_variables(env: Mapping[str, str], places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the cache variables with their folders on this machine.

    A folder is the variable's value in ``env``, else in our own environment, else a default below the user's cache folder.
    ``places`` has by variable what its program uses by default under a home directory, such as ``.triton/cache``.
    """
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for variable, place in places.items():
        # Models of the hub go to the user's own cache. Files compiled in a container belong to its user, possibly root: they stay apart.
        parent = user_cache if variable in _HUB else user_cache / "pytest-specdec"
        # `.cache/huggingface` becomes `huggingface`, and `.triton/cache` becomes `triton`.
        name = place.removeprefix(".cache/").removesuffix("/cache").removeprefix(".")
        yield variable, str(Path(_configured_value(variable, env) or parent / name).expanduser())
    # The models in the hub's cache lie below its folder unless this variable names another.
    if hub := _configured_value(_HUB_CACHE, env):
        yield _HUB_CACHE, str(Path(hub).expanduser())


def _is_covered(host: str, place: str | None, volume_targets: Sequence[str]) -> bool:
    """Return True if a volume of the config holds the cache.

    ``host`` is the cache's folder, and ``place`` its default place under a home directory, if it has one. ``volume_targets``
    are the container paths of the config's volumes. One of them holds the cache if it is ``host`` or a folder above, or if
    it ends with ``place``, in whatever home directory.
    """
    return any(PurePosixPath(host).is_relative_to(path) or (place and path.rstrip("/").endswith(f"/{place}")) for path in volume_targets)


def _volume_targets(settings: DockerSettings) -> Iterator[str]:
    """Yield the container paths of all volumes in the config.

    Its docker options may state some too, as ``--volume=HOST:PATH`` with or without a mode at the end.
    """
    yield from (path.partition(":")[0] for path in settings.volumes.values())
    yield from (value.split(":")[1] for value in option_values(settings.options, "--volume", "-v") if ":" in value)


def _existing_folders(variables: Mapping[str, str]) -> list[str]:
    """Return the variables' values that are absolute paths of folders here."""
    return [value for value in variables.values() if value.startswith("/") and Path(value).is_dir()]

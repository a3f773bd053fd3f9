"""The commands that run a server in a Docker container and end it by name."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.engines.protocol import Command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.files.secrets import Secrets

__all__ = ["command"]

_CACHE = ".cache/huggingface"


def command(
    image: str, argv: Sequence[str], *, env: Mapping[str, str], folders: Sequence[str], accelerator: bool, stop_s: float, secrets: Secrets
) -> Command:
    """Return the command that runs ``argv`` in ``image`` on the host's network, with ``folders`` mounted read-only where they are.

    Variables are passed by name, so that no command line holds their values.
    """
    name = f"specdec-{uuid.uuid4().hex[:12]}"
    options = ["--rm", "--name", name, "--network", "host", *(("--gpus", "all", "--ipc", "host") if accelerator else ())]
    for variable in (*env, "HF_TOKEN"):
        options += ["--env", variable]
    for folder in folders:
        options += ["--volume", f"{folder}:{folder}:ro"]
    cache = Path.home() / _CACHE
    if cache.is_dir():
        options += ["--volume", f"{cache}:/root/{_CACHE}"]
    return Command(
        argv=("docker", "run", *options, image, *argv),
        env=env,
        stop=("docker", "stop", "--time", str(round(stop_s)), name),
        kill=("docker", "kill", name),
        look=("docker", "exec", name, "sh", "-c", "ls -l /proc/[0-9]*/fd"),
        secrets=secrets,
    )

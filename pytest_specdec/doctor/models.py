"""The models of a config's arms, its servers: a folder, or a name on the Hugging Face hub with what it takes to fetch it."""

from __future__ import annotations

import difflib
import os.path
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.doctor import machine
from pytest_specdec.doctor.check import fail, ok, warn
from pytest_specdec.engines import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.doctor.arms import Arm
    from pytest_specdec.doctor.check import Check
    from pytest_specdec.engines.protocol import Engine

_GATED = (
    *("meta-llama/*", "google/gemma*", "google/codegemma*", "google/paligemma*", "mistralai/Mistral-*", "mistralai/Mixtral-*"),
    *("CohereLabs/*", "CohereForAI/*", "bigcode/starcoder*"),
)
"""Families whose licence has to be accepted on the hub, after which a token fetches them."""
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_YES = {"1", "true", "yes", "on"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHub:
    """The hub as the servers see it."""

    cache: Path
    offline: bool
    has_token: bool

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ModelHub:
        """Return the hub's settings as ``environ`` states them to huggingface_hub.

        Of an access token only its presence is read.
        """
        home = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
        token = Path(environ.get("HF_TOKEN_PATH") or home / "token").expanduser()
        return cls(
            cache=checkpoint.hub_cache(environ),
            offline=any(environ.get(name, "").lower() in _YES for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")),
            has_token=any(environ.get(name) for name in _TOKENS) or token.is_file(),
        )

    def holds(self, name: str) -> bool:
        """Return True if the cache has a snapshot of the model.

        The snapshot may be incomplete.
        """
        return any((self.cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/*"))


def checks(config: Config, engine: Engine, arms: Sequence[Arm], hub: ModelHub) -> Iterator[Check]:
    """Yield a check of every model of the arms.

    Each model is checked once, under the first arm that has it. A check of the space for downloads follows, unless
    nothing is to be downloaded or the hub is offline.
    """
    arm_by_model: dict[str, str] = {}
    for arm in arms:
        for model in engine.models(arm.model, arm.args):
            arm_by_model.setdefault(model, arm.name)
    yield from (check(config, arm, model, hub) for model, arm in arm_by_model.items())
    missing = [model for model in arm_by_model if _may_be_on_hub(config, model) and not hub.holds(model)]
    if missing and not hub.offline:
        yield machine.download(hub.cache, missing)


def check(config: Config, arm: str, model: str, hub: ModelHub) -> Check:
    """Check one model without loading it.

    It must be a local checkpoint, or a name on the hub. ``arm`` is the name of an arm that has it.
    """
    path = Path(os.path.normpath(config.resolve(model)))
    if path.exists():
        return _check_local_model(arm, path)
    if _may_be_on_hub(config, model):
        return _check_hub_model(arm, model, hub)
    return _fail_absent_model(arm, model, config.path.parent / Path(model).expanduser())


def _may_be_on_hub(config: Config, model: str) -> bool:
    """Return True if ``model`` can be a name on the hub.

    It has the form of one, is no existing path, and does not end in ``.gguf``, as only files do.
    """
    return not Path(config.resolve(model)).exists() and _NAME.fullmatch(model) is not None and not model.endswith(".gguf")


def _check_local_model(arm: str, path: Path) -> Check:
    """Check that a path is a model.

    It must be a file, or a folder with config.json.
    """
    if path.is_file() or (path / "config.json").is_file():
        return ok("models", f"{arm}: {path}")
    remedy = "name the folder of a checkpoint, weights and config.json"
    return fail("models", f"{arm}: the folder {path} holds no config.json", remedy=remedy)


def _check_hub_model(arm: str, model: str, hub: ModelHub) -> Check:
    """Check a model of the hub.

    It must be cached, or possible to download. It fails if the hub is offline, and warns if the model's licence needs a
    token that is not set.
    """
    if hub.holds(model):
        return ok("models", f"{arm}: {model}, in the hub cache {hub.cache}")
    if hub.offline:
        line = f"{arm}: {model} is not in the hub cache {hub.cache}, and HF_HUB_OFFLINE is set"
        return fail("models", line, remedy=f"hf download {model}, or unset HF_HUB_OFFLINE")
    if any(fnmatch(model, family) for family in _GATED) and not hub.has_token:
        remedy = "accept the licence on the model's page, then export HF_TOKEN=…"
        return warn("models", f"{arm}: {model} is of a gated family, and HF_TOKEN is not set", remedy=remedy)
    return ok("models", f"{arm}: {model}, which the first boot downloads into {hub.cache}")


def _fail_absent_model(arm: str, model: str, path: Path) -> Check:
    """Return a failed check for a missing model.

    A similar name in its folder is suggested.
    """
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    suggestions = difflib.get_close_matches(path.name, siblings, n=1)
    hint = f"; did you mean {str(Path(model).parent / suggestions[0])!r}?" if suggestions else ""
    return fail(
        "models",
        f"{arm}: no model {model}{hint}",
        f"found:    no {os.path.normpath(path.absolute())}",
        "expected: a folder, absolute or relative to the config, or a name on the hub such as Qwen/Qwen3-8B",
        remedy="correct the name",
    )

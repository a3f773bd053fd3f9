"""Plans of every shipped config at every depth, and the bytes of every request through every dialect."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, planner
from pytest_specdec.capture.planner import SelectedWorkload
from pytest_specdec.config import load
from pytest_specdec.config.matrix import is_matrix
from pytest_specdec.engines.protocol import ServerSetup
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.errors import EngineError
from pytest_specdec.files import codec
from pytest_specdec.files.secrets import Secrets
from pytest_specdec.model.workload import Depth, Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_specdec.config.config import Config
    from pytest_specdec.engines.protocol import Dialect
    from pytest_specdec.model.workload import JSON

__all__ = ["plans", "requests", "suites"]

ROOT = Path(__file__).parents[2]
_CONFIGS = [path for path in sorted((ROOT / "suites" / "configs").glob("*.yaml")) if not is_matrix(path)]
_DEVICE = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def suites() -> list[SelectedWorkload]:
    """Return every workload of the suites with the family that judges it."""
    selected = []
    for path in sorted(path for family in Family for path in (ROOT / "suites" / family).glob("test_*.py")):
        spec = importlib.util.spec_from_file_location(f"suites_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        marks = [mark for value in vars(module).values() for mark in getattr(value, "pytestmark", ()) if mark.name == "specdec"]
        selected += [SelectedWorkload(workload=mark.args[0], family=Family(mark.kwargs["family"])) for mark in marks]
    return selected


def plans(_: Path) -> Iterator[tuple[str, JSON]]:
    """Yield the plan of every shipped config at every depth, on a machine with one large device; requests by their hash."""
    _pin_the_machine()
    for path in _CONFIGS:
        config = load.load(path)
        for depth in Depth:
            plan = codec.encode(planner.make(config, suites(), depth))
            assert isinstance(plan, dict)
            workloads = plan.pop("workloads")
            yield f"{path.stem} {depth}", {**plan, "workloads": _hash(workloads)}


def requests(_: Path) -> Iterator[tuple[str, JSON]]:
    """Yield a hash of what each config's dialect sends for every workload, streamed and whole."""
    _pin_the_machine()
    for path in _CONFIGS:
        config = load.load(path)
        dialect = _dialect(config)
        for selected in suites():
            workload = selected.workload.at(Depth.STANDARD)
            bodies = [
                [dialect.path(request), dict(dialect.sent(request, stream=stream))]
                for request in workload.requests
                for stream in (True, False)
            ]
            yield f"{path.stem} {workload.name}", _hash(bodies)


def _dialect(config: Config) -> Dialect:
    """Return the dialect of the config's engine; that of an attached server where the engine is not installed."""
    engine = engine_of(config.engine.kind)
    setup = ServerSetup(model=config.engine.model or "model", port=1, args=config.engine.args, secrets=Secrets())
    try:
        return engine.dialect(config, setup)
    except EngineError:
        return engine.dialect(config, replace(setup, attached="http://127.0.0.1:1"))


def _hash(value: object) -> str:
    """Return a hash by which two checkouts in different folders agree."""
    text = json.dumps(value, sort_keys=True, default=list).replace(str(ROOT), ".")
    return hashlib.sha256(text.encode()).hexdigest()


def _pin_the_machine() -> None:
    environment.has_accelerator = lambda: True
    environment.devices = lambda: (_DEVICE,)

"""Upgrades of engines that need a GPU: two doubles each, which differ in one behaviour that changed between releases, and its source."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.engines.doubles import serving, sglang
from tests.engines.doubles.configs import CONFIGS, TARGET

SAFE, CHANGED, OFFERS_LESS = "SAFE TO UPGRADE", "ANSWERS CHANGED, speculation follows", "THE NEW RUN OFFERS LESS"
UNKNOWN = "NO FINDING in either run; whether the baseline's answers changed is unknown"
"""A release before 1.3 lists no log-probabilities where it reports token ids, so that its run measured no noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleUpgrade:
    """One upgrade."""

    engine: str
    behaviour: str
    """What changed, as its source has it."""
    source: str
    """The pull request that changed it."""
    old: Mapping[str, str] = field(default_factory=dict)
    """Variables of the double of the engine in use."""
    new: Mapping[str, str] = field(default_factory=dict)
    releases: tuple[str, ...] = ()
    """Of the old and the new double; () where both are of the same one."""
    new_options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the new release has and the config takes up."""
    model_temperature: float | None = None
    """In the checkpoint's generation_config.json."""
    word: str
    """How the headline begins."""
    says: str
    """What the terminal has to say besides."""

    @property
    def code(self) -> int:
        """The session's exit code."""
        return int(self.word in {CHANGED, OFFERS_LESS})


UPGRADES: Mapping[str, DoubleUpgrade] = {
    "trtllm-logprobs-refused": DoubleUpgrade(
        engine="tensorrt_llm",
        behaviour="log-probabilities are refused with 400 where it speculates",
        source="NVIDIA/TensorRT-LLM#18401",
        new={"TRTLLM_DOUBLE_REFUSES_LOGPROBS": "1"},
        word=OFFERS_LESS,
        says="  now refuses logprobs, which was honoured: draft-k3",
    ),
    "trtllm-generation-config": DoubleUpgrade(
        engine="tensorrt_llm",
        behaviour="the option generation_config: auto takes default sampling parameters from the checkpoint",
        source="NVIDIA/TensorRT-LLM#17213",
        new={"TRTLLM_DOUBLE_GENERATION_CONFIG": "1"},
        new_options={"generation_config": "auto"},
        model_temperature=0.6,
        word=CHANGED,
        says="default sampling parameters",
    ),
    "trtllm-completions-logprobs": DoubleUpgrade(
        engine="tensorrt_llm",
        behaviour="completions report log-probabilities, by which many prefixes are scored at once",
        source="NVIDIA/TensorRT-LLM#10809",
        releases=("1.2.0", "1.3.0"),
        word=UNKNOWN,
        says="now honours logprobs, which was refused",
    ),
    "sglang-spec-details": DoubleUpgrade(
        engine="sglang",
        behaviour="answers hold their own counts of drafts (return_spec_tokens_details)",
        source="sgl-project/sglang#33518",
        old={"SGLANG_DOUBLE_NO_SPEC_DETAILS": "1"},
        word=SAFE,
        says="no finding in either run",
    ),
    "sglang-chat-temperature": DoubleUpgrade(
        engine="sglang",
        behaviour="a chat without a temperature is drawn at the checkpoint's own, no longer at 0.7",
        source="sgl-project/sglang#11304",
        old={"SGLANG_DOUBLE_COOL_CHATS": "1"},
        model_temperature=1.5,
        word=CHANGED,
        says="default sampling parameters",
    ),
    "sglang-overlap-logprobs": DoubleUpgrade(
        engine="sglang",
        behaviour="under speculation with the overlap scheduler every token has its log-probability, no longer the first alone",
        source="sgl-project/sglang#19801",
        old={"SGLANG_DOUBLE_FIRST_LOGPROB": "1"},
        word=SAFE,
        says="log-probabilities are missing for some tokens",
    ),
}
_PROGRAMS: Mapping[str, Callable[..., Path]] = {"tensorrt_llm": serving.trtllm_serve, "sglang": sglang.python}


def write(name: str, folder: Path) -> Path:
    """Write the config of an upgrade, with both of its engines, and the programs that it names, into ``folder``."""
    upgrade = UPGRADES[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIGS[upgrade.engine](folder)
    engine = {key: value for key, value in config["engine"].items() if key != "executable"}
    if upgrade.model_temperature is not None:
        engine["model"] = str(shutil.copytree(TARGET, folder / "target"))
        path = folder / "target" / "generation_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": upgrade.model_temperature}))
    engines: dict[str, Any] = {}
    for number, (side, variables) in enumerate((("old", upgrade.old), ("new", upgrade.new))):
        release = {"release": upgrade.releases[number]} if upgrade.releases else {}
        engines[side] = {"executable": str(_PROGRAMS[upgrade.engine](folder / side, **release, **variables))}
    if upgrade.new_options:
        options = {**engine["args"]["extra_llm_api_options"], **upgrade.new_options}
        engines["new"]["args"] = {"extra_llm_api_options": options}
    path = folder / "upgrade.yaml"
    path.write_text(yaml.safe_dump({"engine": engine, "engines": engines, "variants": config["variants"]}))
    return path

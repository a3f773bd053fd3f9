"""Faults of one rank of several: the others are right, and the router in front of them hides which one answered."""

from __future__ import annotations

from typing import Final

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import TOKENS_WRONG, Place, PlantedFault, in_, plant

_TOPIC: Final = "ranks"
_SLOWER: Final = dict.fromkeys(set(Family) - {Family.SPEED}, "A workload may have gone to the rank without accepted drafts alone.")
_UNDRAFTED: Final = dict.fromkeys(Family, "Its workload sends one request at a time too.")
_DEAD: Final = dict.fromkeys(Family, "Its requests meet the dead rank too, or find no restart left.")

plant(
    PlantedFault(
        id="rank-accepts-nothing",
        does="Accepts no draft token on one rank of two.",
        expected=in_(Place.STACK, may=_SLOWER, speed="a rank accepts nothing while the others do"),
        of_rank="dead-drafts",
        mirrors=("vllm-project/vllm-ascend#11127",),
        topic=_TOPIC,
    )
)
plant(
    PlantedFault(
        id="rank-wrong-tokens",
        does="Accepts every draft token on one rank of two.",
        expected=in_(Place.STACK, may=TOKENS_WRONG, greedy="draft tokens accepted without verification"),
        of_rank="accept-all",
        mirrors=("vllm-project/vllm-ascend#11127", "sgl-project/sglang#33614"),
        topic=_TOPIC,
    )
)
plant(
    PlantedFault(
        id="rank-dies",
        does="Kills one rank of two when a request brings a grammar.",
        expected=in_(Place.STACK, may=_DEAD, structured="the server dies|scattered failures"),
        of_rank="die-on-json",
        alone=True,
        mirrors=("vllm-project/vllm-ascend#16799",),
        topic=_TOPIC,
    )
)
plant(
    PlantedFault(
        id="idle-ranks-veto",
        does="Drafts nothing on a rank that has a single request, since the idle ranks have none to draft for.",
        expected=in_(Place.STACK, may=_UNDRAFTED, state="nothing drafted"),
        of_rank="drafts-off-alone",
        every_rank=True,
        mirrors=("xLLM-AI/xllm#2255",),
        topic=_TOPIC,
    )
)

"""Faults of sampling parameters: dropped, or applied at some positions only."""

from __future__ import annotations

from pytest_specdec.reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

ROWS = (
    PlantedFault(
        id="penalties-ignored",
        does="Leaves penalties and biases out at draft positions; the bonus position still has them.",
        expected=in_(Place.REFERENCE, parameters="penalties or biases are ignored at draft positions")
        | in_(Place.VLLM, parameters="penalties or biases are ignored"),
        mirrors=("vllm-project/vllm#18902",),
    ),
)

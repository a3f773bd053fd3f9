"""Faults of requests that touch each other in a batch."""

from __future__ import annotations

from pytest_specdec.model.workload import Family
from specdec_reference.faults.planted import Place, PlantedFault, in_

__all__ = ["ROWS"]

IN_COMPANY = "answers go wrong only in company|answers go wrong beside|answers are swapped between requests"
_EVERY_BATCH = dict.fromkeys(
    (Family.GREEDY, Family.PARAMETERS, Family.SAMPLING, Family.LOGPROBS, Family.STRUCTURED, Family.LIVENESS, Family.SEEDS),
    "Their requests are in flight together too.",
)

ROWS = (
    PlantedFault(
        id="rows-swapped",
        does="Gives each row of a batch of greedy and sampled requests the last token of the row before.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="answers go wrong beside requests that sample|" + IN_COMPANY)
        | in_(
            Place.VLLM,
            may=_EVERY_BATCH,
            # Before a token is seen to be wrong, its grammar refuses it.
            concurrency="the server answers 5xx with several requests in flight|" + IN_COMPANY,
        ),
    ),
    PlantedFault(
        id="padding-leaks",
        does="Gives the last row of a batch that had to be padded the token of the padding.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
        mirrors=("NVIDIA/TensorRT-LLM#5791",),
    ),
    PlantedFault(
        id="wrong-at-three",
        does="Mixes up the last tokens of a batch of exactly three.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
    ),
    PlantedFault(
        id="most-accepted",
        does="Accepts as many draft tokens of every row as of the luckiest row of the batch.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
    ),
    PlantedFault(
        id="fewest-accepted",
        does="Cuts every window to the shortest of the batch and keeps the token drawn behind the longer one.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
    ),
    PlantedFault(
        id="first-temperature",
        does="Samples every row of a batch under the temperature of the first.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests that sample")
        | in_(Place.VLLM, may=_EVERY_BATCH, concurrency="beside requests that sample|" + IN_COMPANY),
    ),
    PlantedFault(
        id="greedy-sampled",
        does="Draws the tokens of greedy requests too once a sampled one is in flight.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests that sample"),
    ),
    PlantedFault(
        id="penalties-for-all",
        does="Applies one request's penalties to the whole batch.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests with penalties"),
    ),
    PlantedFault(
        id="grammar-of-neighbour",
        does="Masks requests without a grammar by the grammar of a neighbour.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="beside requests with a grammar|" + IN_COMPANY),
    ),
    PlantedFault(
        id="neighbours-target",
        does="Verifies every second row's draft against the distribution of the row before.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
        mirrors=("vllm-project/vllm#14645",),
    ),
    PlantedFault(
        id="bonus-of-neighbour",
        does="Draws the bonus token from the distribution of the row before that gets one.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency=IN_COMPANY),
    ),
    PlantedFault(
        id="wrong-after-abort",
        does="Loses an entry of every running request's cache when a neighbour's client leaves.",
        expected=in_(Place.REFERENCE, concurrency="when a neighbour's client leaves"),
    ),
    PlantedFault(
        id="die-on-abort",
        does="Kills the server when a client leaves in the middle of an answer.",
        expected=in_(Place.REFERENCE, concurrency="one of which its client leaves"),
        alone=True,
    ),
    PlantedFault(
        id="dead-drafts-under-load",
        does="Accepts no draft token while eight requests or more are in flight.",
        expected=in_(Place.REFERENCE, may=_EVERY_BATCH, concurrency="drafts are hardly ever accepted in company"),
    ),
)

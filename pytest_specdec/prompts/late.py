"""Late positions: a few long answers among the short ones of a workload, for faults that begin late in an answer."""

from __future__ import annotations

from dataclasses import replace

from pytest_specdec.model.workload import Depth, Workload

__all__ = ["with_late"]


def with_late(workload: Workload, late: Workload, *, standard: int) -> Workload:
    """Return ``workload`` with the long requests of ``late`` added.

    Smoke depth sends none of them. Standard depth sends the first ``standard`` ones, right after the requests of smoke depth, so that
    a long answer begins early and runs together with the short ones. Deep depth sends all, the others right after the requests of
    standard depth. ``workload.take`` has to state both depths. The added requests' ids begin with ``late-``; others are unchanged.
    """
    smoke_count, standard_count = workload.take[Depth.SMOKE], workload.take[Depth.STANDARD]
    late_requests = tuple(replace(request, id=f"late-{request.id}") for request in late.requests)
    usual_requests = workload.requests
    return replace(
        workload,
        requests=(
            *usual_requests[:smoke_count],
            *late_requests[:standard],
            *usual_requests[smoke_count:standard_count],
            *late_requests[standard:],
            *usual_requests[standard_count:],
        ),
        take={**workload.take, Depth.STANDARD: standard_count + standard},
    )

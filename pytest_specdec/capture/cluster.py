"""A cluster that captures: what a group needs of a node, and what any cluster offers; Ray is the one there is (:mod:`ray_cluster`).

A group is the cells of a config's matrix with one baseline, captured by one task on one node. Devices are accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytest_specdec.capture import devices, placement
from pytest_specdec.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_specdec.config.config import Config
    from pytest_specdec.files.folder_stream import FilePart
    from pytest_specdec.model.workload import JSON

__all__ = ["Cluster", "Needs", "Node", "NodeLostError", "Task", "TaskFailedError", "find_fitting", "needs_of", "require_fit"]

Work = Callable[..., Iterator[Sequence["FilePart"]]]
"""A function that runs on a node and yields the parts of a run as they come."""
_GPU, _CPU = "GPU", "CPU"


class NodeLostError(Exception):
    """The node of a task, or its process there, is gone.

    Another node may do the work.
    """


class TaskFailedError(Exception):
    """A task ended in an error not due to its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a cluster."""

    id: str
    name: str
    resources: Mapping[str, float]
    """In all, free or not: ``CPU``, ``GPU`` and those that the cluster's owner has named."""
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a node has to have for a task."""

    devices: int
    cpus: float
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, JSON] = field(default_factory=dict)
    """What is set up on the node before the task begins; no node has it beforehand."""

    @property
    def amounts(self) -> Mapping[str, float]:
        """The amount of each resource."""
        return {_CPU: self.cpus, _GPU: float(self.devices), **self.resources}

    def __str__(self) -> str:
        amounts = [f"{amount:g} {name}" for name, amount in self.amounts.items() if amount]
        return ", ".join([*amounts, *(f"{name}={value}" for name, value in self.labels.items())])


class Task(Protocol):
    """A task at work on a cluster, or waiting for a node."""

    def next(self) -> Sequence[FilePart] | None:
        """Return the next parts of its run; None at its end.

        Raises NodeLostError or TaskFailedError.
        """

    def cancel(self) -> None:
        """Interrupt the work on the node, which then ends its servers."""


class Cluster(Protocol):
    """What a capture asks of a cluster."""

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are up."""

    def versions(self) -> Mapping[str, str]:
        """Return the release of this package on each node, by name.

        It is empty for a node without this package.
        """

    def submit(self, name: str, work: Work, *arguments: object, needs: Needs) -> Task:
        """Return a task that calls ``work`` on a node with ``needs``, once."""

    def wait(self, tasks: Sequence[Task], wait_s: float) -> Sequence[Task]:
        """Return the ``tasks`` with something to take, waiting for one.

        A task's next parts, or its end, are there to take. Returns an empty sequence after ``wait_s`` seconds without any.
        """

    def close(self) -> None:
        """Leave the cluster; tasks of this session end."""


def needs_of(config: Config, nodes: Sequence[Node]) -> Needs:
    """Return what the capture of ``config`` needs of a node.

    Devices are those of its largest server; none if no node has any, or if a server is attached, one that runs already elsewhere. The
    config states all else.
    """
    has_devices = any(node.resources.get(_GPU) for node in nodes)
    takes_devices = has_devices and not placement.attached_arms(config)
    stated = config.cluster
    return Needs(
        devices=devices.count_needed(config, accelerators=True) if takes_devices else 0,
        cpus=stated.cpus,
        resources=stated.resources,
        labels=stated.labels,
        runtime_env=stated.runtime_env,
    )


def require_fit(needs: Mapping[str, Needs], nodes: Sequence[Node]) -> None:
    """Raise PlanError if a group fits no node, even a free one.

    ``needs`` are those of the groups, by name. The error lists the groups that do not fit, and what each node has.
    """
    unfitting = {name: need for name, need in needs.items() if not find_fitting(need, nodes)}
    if unfitting:
        unmet_needs = "\n".join(f"{name} needs {need}" for name, need in unfitting.items())
        expected = "\n".join(f"{node.name}: {_describe_node(node)}" for node in nodes) or "a node that is up"
        what, remedy = (
            "no node of the cluster is large enough",
            "add such a node, leave these cells out (--specdec-only), or correct `cluster`",
        )
        raise PlanError(what, where="--specdec-cluster", found=unmet_needs, expected=expected, remedy=remedy)


def find_fitting(needs: Needs, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes that have what is needed, free or not."""
    return [
        node
        for node in nodes
        if all(node.resources.get(name, 0.0) >= amount for name, amount in needs.amounts.items())
        and all(node.labels.get(name) == value for name, value in needs.labels.items())
    ]


def _describe_node(node: Node) -> str:
    """Return a node's amounts and labels in words.

    Those that Ray gives every node are left out.
    """
    hidden = ("node:", "memory", "object_store_memory")
    amounts = [f"{amount:g} {name}" for name, amount in sorted(node.resources.items()) if not name.startswith(hidden)]
    labels = [f"{name}={value}" for name, value in sorted(node.labels.items()) if not name.startswith("ray.io/node")]
    return ", ".join([*amounts, *labels]) or "nothing"

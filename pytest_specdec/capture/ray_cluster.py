"""Ray as the cluster that captures: an extra, imported only where ``--specdec-cluster`` asks for it.

Of Ray it takes connection, scheduling by resources and labels, environments of a node, and a stream of results. A task is tried once:
where its node is lost, the session submits it anew with what has arrived, so that no answer is asked for again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_specdec.capture.cluster import Node, NodeLostError, TaskFailedError
from pytest_specdec.errors import CaptureError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_specdec.capture.cluster import Needs, Task, Work
    from pytest_specdec.files.folder_stream import FilePart

__all__ = ["RayCluster", "connect"]

_VERSIONS_S = 60.0
"""Seconds that all nodes get to say their release."""
_CLIENT, _AUTO = "ray://", "auto"
_CONNECT_S = 10.0
"""Seconds for a connection to the head; Ray itself would try for minutes."""
_DISTRIBUTION = "pytest-specdec"


def connect(address: str) -> RayCluster:
    """Return the cluster at ``address``, connected to this process.

    The address is HOST:PORT of the cluster's head, or ``auto`` for the cluster that this machine belongs to. Raises ConfigError without Ray
    or for any other address, such as a Ray Client's, and CaptureError if no cluster answers.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError:
        what, expected = "--specdec-cluster needs Ray", "the package ray beside this one, here and on each node"
        raise ConfigError(what, found="no package ray", expected=expected, remedy="pip install 'pytest-specdec[ray]'") from None
    # For "auto" Ray itself takes the address in this variable, if it is set.
    _check_address(os.environ.get("RAY_ADDRESS", address) if address == _AUTO else address)
    refusals = (OSError, RuntimeError, ValueError, ray.exceptions.RayError)
    try:
        if address != _AUTO:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _CONNECT_S).close()  # Ray itself would try for minutes
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False, ignore_reinit_error=True)
    except refusals as error:
        what, remedy = "there is no cluster to capture on", "start one with `ray start --head`, or name its address"
        expected = "a cluster of Ray that answers, of this release of Ray and Python"
        raise CaptureError(what, where=f"--specdec-cluster={address}", found=str(error), expected=expected, remedy=remedy) from error
    return RayCluster(ray)


def _check_address(address: str) -> None:
    """Raise ConfigError for anything but ``auto`` and HOST:PORT.

    A Ray Client's address (``ray://``) brings no results as they come. Given any other word, Ray would start a cluster of its own.
    """
    if address == _AUTO or (re.fullmatch(r".+:\d{1,5}", address) and not address.startswith(_CLIENT)):
        return
    what, remedy = "this is no address of a cluster", "name the cluster's head, on one of its nodes"
    if address.startswith(_CLIENT):
        what = "a Ray Client brings no answers as they come"
        remedy = "start this session on a node, such as the head: `ray job submit -- pytest …`"
    raise ConfigError(what, where="--specdec-cluster", found=address, expected="auto, or HOST:PORT of the cluster's head", remedy=remedy)


class RayCluster:
    """The cluster that this process is connected to."""

    def __init__(self, ray: Any) -> None:  # noqa: ANN401 - the module, which is an extra
        self._ray = ray

    def nodes(self) -> Sequence[Node]:
        """Return the nodes that are up."""
        return [
            Node(id=node["NodeID"], name=_name(node), resources=node["Resources"], labels=node.get("Labels", {}))
            for node in self._ray.nodes()
            if node["Alive"]
        ]

    def versions(self) -> Mapping[str, str]:
        """Return the release of this package on each node, by name.

        It is empty for a node without this package. A node that does not answer within a minute is left out.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 - an extra

        # Ray sends a nested function as code, not by its module's name: a node without this package can run it.
        def release(name: str) -> str:
            """Return the release of a package on the node; empty without it."""
            from importlib import metadata  # noqa: PLC0415 - on the node

            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return ""

        remote = self._ray.remote(release)
        nodes_by_reference = {
            remote.options(num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False)).remote(
                _DISTRIBUTION
            ): node
            for node in self.nodes()
        }
        ready, _ = self._ray.wait(list(nodes_by_reference), num_returns=len(nodes_by_reference), timeout=_VERSIONS_S)
        releases = {}
        for reference in ready:
            with suppress(self._ray.exceptions.RayError):  # a node that was lost meanwhile
                releases[nodes_by_reference[reference].name] = self._ray.get(reference)
        return releases

    def submit(self, name: str, work: Work, *arguments: object, needs: Needs) -> Task:
        """Return a task that calls ``work`` once, on a node with ``needs``.

        The needs are CPUs, GPUs, resources, labels and an environment. The parts that ``work`` yields come one by one. Ray spreads tasks
        over the nodes, and retries none: a lost one is submitted anew by the session. ``name`` is the task's name in Ray. Raises
        ConfigError if Ray refuses an amount, label or environment that the config states.
        """
        options: dict[str, Any] = {
            "name": name,
            "num_cpus": needs.cpus,
            "num_gpus": needs.devices,
            "resources": dict(needs.resources),
            "max_retries": 0,
            "num_returns": "streaming",
            "scheduling_strategy": "SPREAD",
        }
        if needs.labels:
            options["label_selector"] = dict(needs.labels)
        if needs.runtime_env:
            options["runtime_env"] = dict(needs.runtime_env)
        try:
            return _RayTask(self._ray, self._ray.remote(work).options(**options).remote(*arguments))
        except (TypeError, ValueError) as error:
            what, expected = "Ray refuses what the config asks of a node", "amounts, labels and an environment as Ray takes them"
            raise ConfigError(
                what, where="cluster", found=str(error), expected=expected, remedy="correct `cluster` in the config"
            ) from error

    def wait(self, tasks: Sequence[Task], wait_s: float) -> Sequence[Task]:
        """Return a list of one task with its next parts, or its end, ready.

        Waits at most ``wait_s`` seconds; the list is empty if nothing is ready by then.
        """
        by_stream = {task.stream: task for task in tasks if isinstance(task, _RayTask)}
        ready, _ = self._ray.wait(list(by_stream), num_returns=1, timeout=wait_s, fetch_local=False)
        return [by_stream[stream] for stream in ready]

    def close(self) -> None:
        """Leave the cluster; tasks of this session end."""
        self._ray.shutdown()


class _RayTask:
    """A task of Ray that sends its results one by one."""

    def __init__(self, ray: Any, stream: Any) -> None:  # noqa: ANN401 - Ray's own
        self._ray = ray
        self.stream = stream

    def next(self) -> Sequence[FilePart] | None:
        """Return the next parts of the run's files; None at the task's end.

        Waits until they are there. Raises TaskFailedError for an error that another node would end in too, and NodeLostError for any other
        error of Ray.
        """
        errors = self._ray.exceptions
        try:
            parts: Sequence[FilePart] = self._ray.get(next(self.stream))
        except StopIteration:
            return None
        except (errors.RayTaskError, errors.RuntimeEnvSetupError, errors.TaskUnschedulableError) as error:
            raise TaskFailedError(str(error)) from None
        except errors.RayError as error:
            raise NodeLostError(next(iter(str(error).strip().splitlines()), type(error).__name__)) from None
        return parts

    def cancel(self) -> None:
        """Interrupt the work on the node."""
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.cancel(self.stream, force=False)


def _name(node: Mapping[str, Any]) -> str:
    """Return a node's host name, or address, with part of its id.

    Several nodes may be of one machine.
    """
    return f"{node.get('NodeManagerHostname') or node['NodeManagerAddress']}/{node['NodeID'][:6]}"

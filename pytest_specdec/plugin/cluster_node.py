"""A group's capture on a node of a cluster: a process of its own, whose run goes back as it is written.

``python -m pytest_specdec.plugin.cluster_node FOLDER`` captures what is described in ``FOLDER``; :func:`work` starts it, and yields the
run. The process ends its servers and itself as soon as the one that started it is gone. A group is the part of a matrix that shares one
baseline, or the whole of a config without a matrix. A part is a change of one file of its run. The session submits the group and judges it.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_specdec.capture import environment, locks
from pytest_specdec.capture.server import orphans
from pytest_specdec.config import variables
from pytest_specdec.errors import RunError, SpecdecError
from pytest_specdec.files import run_documents
from pytest_specdec.files.folder_stream import FolderReader, write_parts
from pytest_specdec.files.run_directory import RunDirectory
from pytest_specdec.plugin import capture, child_session
from pytest_specdec.plugin.run_state import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_specdec.config.config import Config
    from pytest_specdec.files.folder_stream import FilePart
    from pytest_specdec.model.plan import Plan
    from pytest_specdec.plugin.options import Settings

__all__ = ["END_S", "OUTPUT", "GroupWork", "work"]

OUTPUT = "output.log"
"""The output of the process, among the parts of the run, which it is no file of."""
_RUN_FOLDER, _OUTPUT_FOLDER, _GROUP_FILE = "run", "output", "work.pickle"
"""In the folder of a task."""
END_S = 60.0
"""Seconds that an interrupted capture gets to stop its servers, besides ``limits.stop_s``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """What a node is told to capture.

    The config has every ``${VAR}`` as written, and a node has values of its own for it. Requests, in ``plan`` and ``planned_by``, have the
    values of the session's machine, as they have on disk.
    """

    config: Config
    settings: Settings
    session: str
    plan: Plan
    planned_by: Callable[[Config], Plan] | None
    """Makes the plan on the node, unless that goes on with what was captured already; None where ``plan`` is a stored one."""
    devices: int
    """That the node gives it; with none, its servers see none."""
    is_resumed: bool
    """Whether an earlier session began the run, whose plan may have been taken further since."""


def work(group: GroupWork, parts: Sequence[FilePart]) -> Iterator[Sequence[FilePart]]:
    """Capture a group here, and yield what changes in its run, about twice a second.

    ``parts`` are the files of the run as far as it was captured already. The capture's output is among the changes, as a file of its own.
    The capture is ended if the generator is closed or interrupted.
    """
    with _folder() as folder:
        run, output = folder / _RUN_FOLDER, folder / _OUTPUT_FOLDER
        run.mkdir()
        output.mkdir()
        write_parts(run, parts)
        (folder / _GROUP_FILE).write_bytes(pickle.dumps(group))
        reader, output_reader = FolderReader(run), FolderReader(output)
        reader.skip(parts)  # the session has sent these itself
        argv = (sys.executable, "-m", __spec__.name, str(folder))
        with (output / OUTPUT).open("wb") as file:
            # Nothing is written to its input: the process ends once that is closed, here or because this process is gone.
            process = subprocess.Popen(  # noqa: S603 - this module
                argv,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(group),  # without what Ray sets
            )
        try:
            is_over = False
            while not is_over:
                time.sleep(child_session.EVERY_S)
                is_over = process.poll() is not None  # before the look at the files, so that the last changes are seen too
                if changed := (*reader.changes(), *output_reader.changes()):
                    yield changed
        finally:
            _end(process, END_S + group.config.limits.stop_s)


def _environment(group: GroupWork) -> dict[str, str]:
    """Return the variables of the capture.

    Two settings of Ray are undone. It leaves all devices visible to a task that has asked for none. And it gives OMP_NUM_THREADS the
    task's number of processors, with which an engine on the CPU would compute otherwise than on a machine of its own.
    """
    variables_of_task = child_session.environment(os.environ)
    if not group.devices:
        variables_of_task |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    if variables_of_task.get("OMP_NUM_THREADS") == str(max(1, int(group.config.cluster.cpus))):
        del variables_of_task["OMP_NUM_THREADS"]
    return variables_of_task


def _end(process: subprocess.Popen[bytes], wait_s: float) -> None:
    """End the capture, if it still runs.

    The end of its input tells it to stop its servers. It is killed if that takes longer than ``wait_s`` seconds.
    """
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(wait_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield an empty folder for a task on this node, removed at the end.

    It stays locked meanwhile (:func:`_hold`), which shows other tasks that it is in use. Before it is made, the folders that killed tasks
    left here are removed, and the servers of these tasks ended.
    """
    parent = locks.folder() / "cluster"
    parent.mkdir(exist_ok=True)
    with ExitStack() as held:
        with capture.claim_directory(parent):  # tasks that begin at once would take each other's folders for abandoned ones
            for other_folder in parent.iterdir():
                with suppress(OSError):
                    _remove_abandoned(other_folder)
            folder = Path(tempfile.mkdtemp(dir=parent))
            held.enter_context(_hold(folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the folder of a killed task, after ending the servers that it left.

    Raises OSError if the task or its capture still runs, since these hold the folder or the run in it.
    """
    run = folder / _RUN_FOLDER  # missing if the task was killed before its capture began: it left no servers then
    with _hold(folder), _hold(run) if run.is_dir() else nullcontext():
        orphans.sweep(folder, held=run)  # it passes over runs that are locked, except for this one, which is locked here
        shutil.rmtree(folder)


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    """Hold a task's folder while the block runs; OSError if another process does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def main(folder: Path) -> int:
    """Capture the group that is described in ``folder``, and return the exit code.

    The code is 1 if the capture could not begin, else 0: the run itself says what came of the capture.
    """
    # The file is written by the task that started this process, see :func:`work`.
    group: GroupWork = pickle.loads((folder / _GROUP_FILE).read_bytes())  # noqa: S301 - written by this session's own task
    threading.Thread(target=_follow_starter, args=(END_S + group.config.limits.stop_s,), daemon=True).start()
    try:
        _capture(group, RunDirectory(folder / _RUN_FOLDER))
    except SpecdecError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _capture(group: GroupWork, directory: RunDirectory) -> None:
    """Capture a group into ``directory``, which may have what another node captured of it.

    That is kept if it could have been captured on this node, else removed and captured anew; raises RunError instead of removing what an
    earlier session captured (``group.is_resumed``). The config's variables get this node's values.
    """
    config = variables.fill(group.config, os.environ)
    # The node has been given its devices: the config's own choice is dropped.
    config = replace(config, limits=replace(config.limits, devices=None))
    goes_on, plan = _fits_this_node(directory, config), group.plan
    if not goes_on:  # nothing was captured yet, or not on such a node
        if group.is_resumed and directory.environment.is_file():
            raise _other_machine_error(directory, config)
        _clear(directory.root)
        if group.planned_by is not None:
            plan = group.planned_by(config)  # anew, since the session planned for its own machine
    # For the capture it is a run of this machine, in this directory; the other options that name a run or a place do not apply here.
    resumed = directory.root if group.is_resumed and goes_on else None
    settings = replace(group.settings, resume=resumed, continued=None, run_dir=directory.root, replay=None, cluster="")
    state = RunState(settings, config, root=directory.root, plan=plan, warnings=())
    state.session = group.session
    capture.capture(state, lambda _: None, in_worker=False)


def _other_machine_error(directory: RunDirectory, config: Config) -> RunError:
    """Return the error for a run to resume that this node cannot go on with."""
    what = "the run was begun on another kind of machine, or under other values of its variables"
    here, first = environment.environment(config, "").machine, run_documents.read_environment(directory).machine
    remedy = "label the nodes, and name the label under `cluster`; or begin a new run"
    return RunError(what, where=platform.node(), found=here, expected=f"{first}, and the same variables", remedy=remedy)


def _fits_this_node(directory: RunDirectory, config: Config) -> bool:
    """Return True if the answers in ``directory`` could be this node's.

    That is so if they were captured on such a machine as this one, under the same values of the config's variables. False if nothing was
    captured. One run may have answers under one kind of machine and one set of values only.
    """
    if not directory.environment.is_file() or variables.find_changed(run_documents.read_variables(directory), config.text, os.environ):
        return False
    return run_documents.read_environment(directory).machine == environment.environment(config, "").machine


def _clear(root: Path) -> None:
    """Remove everything in a folder."""
    for path in root.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _follow_starter(wait_s: float) -> None:
    """End this process once the one that started it has closed its input or is gone.

    SIGTERM makes the main thread stop the servers. If that takes longer than ``wait_s`` seconds, the process exits without it.
    """
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(wait_s)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Devices: which of them a session may use, jobs side by side on them, and locks between sessions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from pytest_specdec.capture import devices, environment, locks
from pytest_specdec.capture.devices import AvailableDevices, Device, Job, Slot
from pytest_specdec.config import load
from pytest_specdec.errors import ConfigError, LeaseError, PlanError

UUIDS = ("GPU-aa-1", "GPU-bb-2", "GPU-cc-3", "GPU-dd-4")
PLACES = tuple(Device(name=str(number), lock=f"place-{number}") for number in range(4))
CONFIG = """
engine: {kind: vllm, model: m}
variants: {a: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}
"""


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many devices."""

    def make(count, **variables):
        monkeypatch.setattr(environment, "devices", lambda: ("A",) * count)
        monkeypatch.setattr(environment, "uuids", lambda: UUIDS[:count])
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", devices._LEASED):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return make


def job(name, count, seconds):
    return Job(name=name, devices=count, seconds=seconds)


def drawn(slots):
    return {slot.job: ("".join(device.name for device in slot.devices), slot.begin_s, slot.end_s) for slot in slots}


@pytest.mark.parametrize("jobs, count, expected", [
    ([("a", 1, 5), ("b", 1, 5)], 1, {"a": ("0", 0, 5), "b": ("0", 5, 10)}),
    ([("a", 1, 5), ("b", 1, 9), ("c", 1, 4)], 2, {"b": ("0", 0, 9), "a": ("1", 0, 5), "c": ("1", 5, 9)}),
    # a wide job waits for all of its devices, and narrow ones go before it meanwhile
    ([("wide", 2, 9), ("a", 1, 20), ("b", 1, 3)], 2, {"a": ("0", 0, 20), "b": ("1", 0, 3), "wide": ("01", 20, 29)}),
    ([("wide", 3, 9), ("a", 1, 5), ("b", 2, 3)], 4, {"wide": ("012", 0, 9), "a": ("3", 0, 5), "b": ("01", 9, 12)}),
    ([], 2, {}),
])  # fmt: skip
def test_the_longest_job_that_fits_begins_first(jobs, count, expected):
    assert drawn(devices.schedule([job(*each) for each in jobs], PLACES[:count])) == expected


@pytest.mark.parametrize("jobs, expected_s", [
    ([], 0),
    # c goes on the free device, the others after the job at work and after c
    ([("c", 1, 5), ("d", 1, 3)], 0),
    ([("c", 1, 30), ("d", 1, 3), ("e", 1, 2)], 5),
    # the wide job waits for both devices: only its own seconds have to be left, and those of what waits for it
    ([("wide", 2, 7)], 7),
    ([("c", 1, 30), ("wide", 2, 7)], 7),
    ([("wide", 2, 7), ("wider", 2, 6)], 13),
])  # fmt: skip
def test_a_job_may_take_the_seconds_that_the_jobs_after_it_do_not_need(jobs, expected_s):
    """On the first device of two, for ten seconds."""
    slot, waiting = Slot(job="a", devices=PLACES[:1], begin_s=0, end_s=10), [job(*each) for each in jobs]
    limit = partial(devices.time_limit, slot, running=(), waiting=waiting, devices=PLACES[:2], left_s=100)
    assert limit(least_s=50) == 100 - expected_s
    assert limit(least_s=99) == max(99, 100 - expected_s)


def test_jobs_wait_for_those_at_work():
    at_work = [Slot(job="a", devices=PLACES[:1], begin_s=-5, end_s=10), Slot(job="b", devices=PLACES[1:2], begin_s=-9, end_s=0)]
    slots = devices.schedule([job("c", 1, 4), job("d", 2, 3)], PLACES[:2], at_work)
    assert drawn(slots) == {"c": ("1", 0, 4), "d": ("01", 10, 13)}


def test_jobs_overlap_wherever_in_a_schedule_two_run_at_once():
    wide_first = devices.schedule([job("wide", 2, 3.0), job("a", 1, 2.0), job("b", 1, 1.0)], PLACES[:2])
    assert devices.most_at_once(wide_first) == 2
    assert devices.most_at_once(devices.schedule([job("wide", 2, 3.0), job("also", 2, 2.0)], PLACES[:2])) == 1


def test_no_two_jobs_of_a_schedule_have_a_device_at_one_time():
    jobs = [job(str(number), 1 + number % 4, 1 + number * 7 % 11) for number in range(40)]
    slots = devices.schedule(jobs, PLACES)
    assert sorted(slot.job for slot in slots) == sorted(one.name for one in jobs)

    def clash(one: Slot, other: Slot):
        return set(one.devices) & set(other.devices) and one.begin_s < other.end_s and other.begin_s < one.end_s

    assert not [(one.job, other.job) for one in slots for other in slots if one is not other and clash(one, other)]


def test_a_group_that_fits_no_machine_is_one_error_that_names_it():
    usable = AvailableDevices(devices=PLACES[:2], accelerators=True)
    devices.require_fit([job("small", 2, 1.0)], usable)
    with pytest.raises(PlanError) as caught:
        devices.require_fit([job("small", 2, 1.0), job("tp-4", 4, 1.0), job("tp-8", 8, 1.0)], usable)
    assert caught.value.found == "tp-4: its largest server takes 4 devices\ntp-8: its largest server takes 8 devices"
    assert caught.value.expected == "at most 2: 0, 1"


@pytest.mark.parametrize("args, needed", [
    ("{}", 1),
    ("{tensor-parallel-size: 2}", 2),
    ("{tensor-parallel-size: 2, pipeline-parallel-size: 2, data-parallel-size: 2}", 8),
])  # fmt: skip
def test_a_group_needs_the_devices_of_its_largest_arm(tmp_path, args, needed):
    path = tmp_path / "it.yaml"
    path.write_text(CONFIG.replace("{args: {spec", f"{{args: {{{args[1:-1]}{', ' * (args != '{}')}spec"))
    assert devices.count_needed(load.load(path), accelerators=True) == needed


def test_servers_on_the_cpu_need_no_device(tmp_path):
    path = tmp_path / "it.yaml"
    path.write_text(CONFIG.replace("kind: vllm, model: m", "kind: reference, model: target"))
    assert devices.count_needed(load.load(path), accelerators=True) == 0


@pytest.mark.parametrize("more, why", [
    ("", ""),
    ("baseline: {env: {CUDA_VISIBLE_DEVICES: '1'}}", "the config sets CUDA_VISIBLE_DEVICES"),
    ("speed: {env: {HIP_VISIBLE_DEVICES: '1'}}", "the config sets HIP_VISIBLE_DEVICES"),
    ("baseline: {url: 'http://127.0.0.1:1'}", "attached servers run already"),
])  # fmt: skip
def test_servers_that_the_config_places_itself_are_not_moved(tmp_path, more, why):
    path = tmp_path / "it.yaml"
    path.write_text(f"{CONFIG}{more}\n")
    config = load.load(path)
    assert devices.why_in_turn(config) == why
    assert devices.why_in_turn(replace(config, engine=replace(config.engine, args={"port": 8000}))) == (
        why if "attached" in why else "the config pins the servers' port"
    )


@pytest.mark.parametrize("count, variables, stated, names", [
    (3, {}, None, "0, 1, 2"),
    (3, {"CUDA_VISIBLE_DEVICES": "2,0"}, None, "2, 0"),
    (3, {"CUDA_VISIBLE_DEVICES": "GPU-bb"}, None, "GPU-bb"),
    (3, {"CUDA_VISIBLE_DEVICES": ""}, None, "none"),
    (0, {}, None, "none"),
    (0, {"HIP_VISIBLE_DEVICES": "4,5"}, None, "4, 5"),
    (3, {}, 2, "0, 1"),
    (3, {"CUDA_VISIBLE_DEVICES": "2,0"}, 1, "2"),
    (3, {}, ("2", "GPU-aa"), "2, 0"),
    (0, {}, 2, "0, 1"),
])  # fmt: skip
def test_the_devices_of_a_session(machine, count, variables, stated, names):
    machine(count, **variables)
    usable = devices.available(stated)
    assert usable.names == names
    assert usable.accelerators is not (count == 0 and stated == 2)


@pytest.mark.parametrize("count, stated", [(2, 3), (2, ("0", "7")), (2, ("GPU-cc",)), (0, ("0",))])
def test_a_stated_device_that_is_not_here_is_an_error(machine, count, stated):
    machine(count)
    with pytest.raises(ConfigError, match="a stated device is not here") as caught:
        devices.available(stated)
    assert caught.value.expected.startswith(f"some of the {count} devices here: ")


def hold(config, wait_s=0.0):
    return devices.hold(config, wait_s, lambda: None)


@pytest.fixture
def make_config(tmp_path, monkeypatch):
    """A config of vLLM with further lines, and a folder of its own for locks."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "it.yaml"

    def make(more="", text=CONFIG):
        path.write_text(text + more)
        return load.load(path)

    return make


def held_of(count):
    """Return a letter for each of the first devices: its own where it is held, else a dash."""
    return "".join("-" if locks.is_free(uuid) else uuid[4] for uuid in UUIDS[:count])


def test_a_device_has_one_lock_whatever_it_is_called(machine, make_config):
    for visible in ("1", "GPU-bb-2", "GPU-bb"):
        machine(2, CUDA_VISIBLE_DEVICES=visible)
        with hold(make_config()):
            assert held_of(2) == "-b"


def test_a_process_started_with_locked_devices_takes_no_lock_of_them(machine, make_config):
    machine(3, CUDA_VISIBLE_DEVICES="0,2", **{devices._LEASED: "GPU-aa-1,GPU-cc-3"})
    with hold(make_config()):
        assert held_of(3) == "---"
    machine(3, CUDA_VISIBLE_DEVICES="0,1", **{devices._LEASED: "GPU-aa-1"})
    with hold(make_config()):
        assert (held_of(3), os.environ["CUDA_VISIBLE_DEVICES"]) == ("-b-", "0,1")


def test_a_session_sees_the_stated_devices_only_while_it_captures(machine, make_config):
    machine(3, CUDA_VISIBLE_DEVICES="0,1,2")
    with devices.restrict(("1", "GPU-cc")):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1,2"
        with hold(make_config()):
            assert (held_of(3), os.environ["CUDA_VISIBLE_DEVICES"]) == ("-b-", "1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    with devices.restrict(None):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    machine(0)
    with devices.restrict(2):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ


SGLANG = "engine: {kind: sglang, model: m}\nvariants: {a: {args: {speculative-algorithm: NGRAM}}}\n"
PAIR = "{tensor-parallel-size: 2}"


@pytest.mark.parametrize("text, more, held, visible", [
    (CONFIG, "", "-b--", "1"),
    (CONFIG, f"baseline: {{args: {PAIR}}}", "-bc-", "1,2"),
    # the speed block and a draft model have servers of their own
    (CONFIG, f"speed: {{args: {PAIR}}}", "-bc-", "1,2"),
    (CONFIG, f"draft: {{args: {PAIR}}}", "-bc-", "1,2"),
    (SGLANG, "", "-b--", "1"),
])  # fmt: skip
def test_a_capture_holds_and_shows_the_first_free_devices_that_it_needs(machine, make_config, text, more, held, visible):
    machine(4)
    other = locks.try_device(UUIDS[0])
    with hold(make_config(f"{more}\n", text)):
        os.close(other)
        assert (held_of(4), os.environ["CUDA_VISIBLE_DEVICES"]) == (held, visible)
    assert held_of(4) == "----"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


@pytest.mark.parametrize("text", [
    f"{CONFIG}baseline: {{args: {{tensor-parallel-size: 3}}}}",
    f"{CONFIG}baseline: {{env: {{CUDA_VISIBLE_DEVICES: '1'}}}}",
    f"{CONFIG}scorer: {{kind: transformers, model: m}}",
    f"{SGLANG}baseline: {{args: {{base-gpu-id: 1}}}}",
    "engine: {kind: llama_cpp, model: m, args: {gpu-layers: 99}}\nvariants: {a: {args: {spec-type: ngram-mod}}}",
    "engine: {kind: reference, model: target}\nvariants: {a: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}",
])  # fmt: skip
def test_a_capture_whose_servers_may_use_any_device_holds_all(machine, make_config, text):
    machine(3)
    with hold(make_config(text=f"{text}\n")):
        assert (held_of(3), os.environ.get("CUDA_VISIBLE_DEVICES")) == ("abc", None)


def test_a_capture_that_gets_too_few_devices_holds_none_while_it_waits_and_names_all_holders(machine, make_config):
    machine(3)
    other = locks.try_device(UUIDS[0]), locks.try_device(UUIDS[2])
    locks.write_holder(other[0])
    beats = []

    def heartbeat():
        beats.append(held_of(3))
        os.close(other[1])

    with devices.hold(make_config(f"baseline: {{args: {PAIR}}}\n"), 9.0, heartbeat):
        assert (held_of(3), os.environ["CUDA_VISIBLE_DEVICES"]) == ("abc", "1,2")
    assert beats == ["a-c"]
    third = locks.try_device(UUIDS[2])
    with pytest.raises(LeaseError) as caught, hold(make_config(f"baseline: {{args: {PAIR}}}\n")):
        raise AssertionError
    os.close(other[0])
    os.close(third)
    assert caught.value.what == "another capture holds the devices GPU-aa-1, GPU-bb-2, GPU-cc-3, of which 2 are needed"
    assert f"process {os.getpid()} since" in caught.value.found


HOLD = """
import sys
from pytest_specdec.capture import devices
lease = devices.take([devices.Job(name="one", devices=2, seconds=1.0)], [devices.Device(name=name, lock=name) for name in "abc"])
print(*(device.name for device in lease.devices), flush=True)
sys.stdin.read()
"""


def test_a_device_is_leased_to_one_process_and_comes_free_when_that_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    present, jobs = [Device(name=name, lock=name) for name in "abc"], [job("wide", 2, 9.0), job("narrow", 1, 1.0)]
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "a b\n"
        lease = devices.take(jobs, present)
        assert (lease.job, lease.devices) == ("narrow", (present[2],))
        assert devices.take(jobs, present) is None
        lease.close()
        held_by = locks.device_lock("a").holder
        assert held_by.startswith(f"process {holder.pid} since 20")
        assert held_by.endswith("Z: -c")
        with pytest.raises(LeaseError) as caught, locks.device("a", 0.0, lambda: None):
            raise AssertionError
        assert (caught.value.what, caught.value.found) == ("another capture holds the device a", f"last held alone by {held_by}")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    lease = devices.take(jobs, present)
    assert (lease.job, lease.devices) == ("wide", (present[0], present[1]))
    lease.close()

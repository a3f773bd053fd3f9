"""Releases between two ends: listed by hand with and without the ends, or by pip."""

from __future__ import annotations

import subprocess

import pytest

from pytest_specdec.bisect import releases
from pytest_specdec.bisect.releases import list_releases, parse_versions, select_between
from pytest_specdec.errors import SpecdecError

PIP = "WARNING: a location is ignored\nvllm (0.32.0)\nAvailable versions: 0.32.0, 0.31.1, 0.31.0, 0.30.0\n  INSTALLED: 0.31.0\n"


@pytest.mark.parametrize("listed", [
    ("0", "1", "2", "3", "4", "5"),
    ("1", "2", "3", "4"),
    ("2", "3", "4"),  # as `git rev-list good..bad` lists them
    ("2", "3"),
])  # fmt: skip
def test_an_end_that_is_not_listed_is_put_at_its_place(listed):
    assert select_between(listed, "1", "4") == ("1", "2", "3", "4")


@pytest.mark.parametrize("good, bad", [("3", "1"), ("2", "2")])
def test_ends_in_the_wrong_order_are_one_error(good, bad):
    with pytest.raises(SpecdecError, match="the bad release is not after the good one"):
        select_between(("1", "2", "3"), good, bad)


def test_releases_are_those_of_pip_from_old_to_new():
    assert parse_versions(PIP) == ("0.30.0", "0.31.0", "0.31.1", "0.32.0")
    assert parse_versions("ERROR: No matching distribution found for vlm\n") == ()


@pytest.fixture
def pip(monkeypatch):
    """What pip prints, and on which streams."""

    def answer(output, errors=""):
        monkeypatch.setattr(releases.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, output, errors))

    return answer


def test_an_end_that_was_never_released_is_one_error_with_the_nearest(pip):
    pip(PIP)
    assert list_releases("vllm", ("0.30.0", "0.32.0")) == ("0.30.0", "0.31.0", "0.31.1", "0.32.0")
    with pytest.raises(SpecdecError, match=r"vllm has no release 0\.31$|vllm has no release 0\.31\n") as caught:
        list_releases("vllm", ("0.31", "0.32.0"))
    assert (caught.value.found, caught.value.remedy) == ("0.31", "did you mean '0.31.1'?")


def test_a_package_without_releases_is_one_error_with_pips_word(pip):
    pip("", "WARNING: x\nERROR: No matching distribution found for vlm\n")
    with pytest.raises(SpecdecError, match="pip lists no releases of vlm") as caught:
        list_releases("vlm", ())
    assert caught.value.found == "ERROR: No matching distribution found for vlm"
    assert "--releases V1,V2" in caught.value.remedy


def test_a_pip_that_does_not_answer_is_one_error(monkeypatch):
    def wait(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(releases.subprocess, "run", wait)
    with pytest.raises(SpecdecError, match="pip lists no releases of vllm") as caught:
        list_releases("vllm", ())
    assert caught.value.found == "no answer within 120 s"

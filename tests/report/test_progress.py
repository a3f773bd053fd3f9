from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_specdec.model.status import Progress
from pytest_specdec.report import progress

NOW = Progress(
    at_s=80.0, boot=1, boots=5, arm="draft-k3", doing="answering", workload="chat", done=17, of=24, tokens=1000, remaining_s=3725.0
)


@pytest.mark.parametrize("seconds, text", [(0, "0:00"), (5.4, "0:05"), (65, "1:05"), (3725, "1:02:05"), (-3, "0:00")])
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


def test_what_is_not_known_is_left_out():
    now = Progress(at_s=3.0, boot=0, boots=5, arm="baseline", doing="booting")
    line = progress.line(now, now)
    assert "0:03" in line
    assert "tokens/s" not in line
    assert " left" not in line


@pytest.mark.parametrize(
    "change, same", [({"done": 18, "at_s": 90.0}, True), ({"workload": "code"}, False), ({"boot": 2}, False), ({"doing": "scoring"}, False)]
)
def test_a_step_is_one_boot_doing_one_thing(change, same):
    assert progress.same_step(replace(NOW, **change), NOW) is same
    assert not progress.same_step(NOW, None)

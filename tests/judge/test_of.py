from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_specdec import judge
from pytest_specdec.model.workload import Family


@pytest.mark.parametrize("family", [Family.GREEDY, Family.LIVENESS, Family.LOGPROBS, Family.SAMPLING, Family.SPEED, Family.STRUCTURED])
def test_a_family_has_the_judge_of_its_name(family):
    assert judge.of(family) is getattr(judge, family.value).judge


def test_a_family_without_a_judge_says_which_have_one():
    with pytest.raises(
        LookupError, match="no judge for the family 'seeds'; there are judges for: greedy, liveness, logprobs, parameters, sampling"
    ):
        judge.of(Family.SEEDS)


def test_an_unknown_judge_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'taste'"):
        judge.taste  # noqa: B018 - the access is the test


def test_judges_load_on_first_use():
    code = "import sys; from pytest_specdec import judge; assert 'numpy' not in sys.modules; judge.sampling; assert 'numpy' in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_judge_pays_for_the_slowest_imports_of_scipy():
    code = "import sys; from pytest_specdec import judge; [getattr(judge, name) for name in judge.__all__]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "scipy.special" in loaded
    assert not {"scipy.stats", "scipy.optimize"} & set(loaded)


def test_exports_are_sorted():
    assert judge.__all__ == sorted(judge.__all__)

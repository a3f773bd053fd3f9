"""The plugin is loaded in every pytest run of its environment, beside plugins it does not know."""

from __future__ import annotations

import sys

from pytest_specdec.plugin import __all__ as fixtures


def test_loading_the_plugin_imports_nothing_heavy(pytester):
    code = (
        "import sys, pytest; before = set(sys.modules); import pytest_specdec.plugin; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names); "
        "print(sorted(new)); print(sorted(m for m in sys.modules if m.startswith('pytest_specdec')))"
    )
    result = pytester.run(sys.executable, "-c", code)
    assert result.outlines == [
        "['pytest_specdec']",
        "['pytest_specdec', 'pytest_specdec.plugin', 'pytest_specdec.plugin.matrix_options', 'pytest_specdec.plugin.options']",
    ]


def test_a_process_that_waits_for_anothers_capture_loads_nothing_that_talks_to_servers(pytester):
    code = "import sys; import pytest_specdec.plugin.capture; sys.exit(bool({'openai', 'numpy'} & set(sys.modules)))"
    assert pytester.run(sys.executable, "-c", code).ret == 0


def test_other_peoples_tests_load_nothing_of_ours(pytester):
    pytester.makepyfile(
        "import sys\n\ndef test_it():\n"
        "    assert not {'pytest_specdec.plugin.run_state', 'pytest_specdec.config', 'yaml', 'numpy', 'openai'} & set(sys.modules)\n"
    )
    result = pytester.runpytest_subprocess("-p", "no:benchmark", "-p", "no:hypothesispytest", "-p", "no:randomly")
    result.assert_outcomes(passed=1)
    assert "specdec: " not in result.stdout.str()
    assert not (pytester.path / ".specdec").exists()


def test_other_peoples_xdist_sessions_are_left_alone(pytester):
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("-n2", "-p", "no:benchmark")
    result.assert_outcomes(passed=1)
    assert "specdec: " not in result.stdout.str()
    assert not (pytester.path / ".specdec").exists()


def test_every_fixture_carries_our_name():
    assert all(name.startswith("specdec_") for name in fixtures)


def test_a_failing_verdict_is_red_beside_pytest_check(project, repository):
    """pytest-check registers a fixture called ``check`` that swallows what it is given; the suites' conftest has to win."""
    project.tests(
        (repository / "suites/conftest.py").read_text()
        + "\nfrom sample import *\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
        + "def test_it(captured, check): check(say(captured, Outcome.FAIL))\n"
    )
    project.run("-p", "check", subprocess=True).assert_outcomes(failed=2)


def test_the_short_names_are_ours(project, repository):
    project.tests(
        "from sample import *\nimport pytest\n\n@pytest.mark.specdec(CHAT, family='greedy')\n"
        "def test_it(pair, captured, spec, base):\n"
        "    assert pair == captured.pair\n    assert spec == captured.speculative.answers\n"
        "    assert base[0].choice.text == 'three tokens'\n"
    )
    own = (repository / "suites/conftest.py").read_text().replace("from __future__ import annotations", "")
    project.pytester.makeconftest("from __future__ import annotations\n" + (project.path / "conftest.py").read_text() + "\n\n" + own)
    result = project.run()
    result.assert_outcomes(passed=2)
    assert [j["verdict"] for j in project.document["judgements"]] == [None, None]
    assert project.document["judged"]


REFUSED = """
from types import SimpleNamespace

from pytest_specdec.capture.server import readiness


def test_a_refused_connection_is_no_answer():
    setup = SimpleNamespace(url="http://127.0.0.1:1", api_key="", headers={})
    assert readiness.look(setup, "/health").status is None
"""


def test_errors_of_connections_are_known_behind_a_session_in_this_process(pytester):
    """httpx would not know a refused connection by the class of a library that was forgotten with the session and loaded anew."""
    pytester.makepyfile(REFUSED)
    for _ in range(2):
        pytester.runpytest_inprocess("-p", "no:benchmark", "-p", "no:hypothesispytest", "-p", "no:randomly").assert_outcomes(passed=1)

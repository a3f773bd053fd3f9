"""What ``init --ci`` writes and ``action.yml`` runs: valid for its system, and scripts that act on exit codes as they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_specdec.__main__ import main
from pytest_specdec.config.shipped import MODULE
from pytest_specdec.files import yaml
from pytest_specdec.report import github_annotations, run
from pytest_specdec.report.upgrade import UpgradeWord
from tests.report.runs import GREEN, MIXED, upgraded_by

ROOT = Path(__file__).parents[1]
ACTION = ROOT / "action.yml"
FILES = {
    "github": (".github/workflows/specdec.yml", "vendor.github-workflows"),
    "gitlab": ("specdec.gitlab-ci.yml", "vendor.gitlab-ci"),
    "buildkite": (".buildkite/specdec.yml", "vendor.buildkite"),
    "jenkins": ("Jenkinsfile.specdec", ""),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SPECDEC_CONFIG", "SPECDEC_SUITES", "SPECDEC_BASELINES", "SPECDEC_AGAINST", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def check(schema, path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("system", FILES)
def test_a_job_is_valid_for_its_system_and_calls_what_is_written_beside_it(here, system, capsys):
    assert main(["init", "my gate", "--ci", system]) == 0
    target, schema = FILES[system]
    text = (here / target).read_text()
    assert f"{target}, specdec-ci.sh" in capsys.readouterr().out
    assert "@" not in text.replace("actions/checkout@", "").replace("actions/upload-artifact@", "")
    for script in re.findall(r"sh (specdec-[\w-]+\.sh)", text):
        assert (here / script).is_file()
    script = (here / "specdec-ci.sh").read_text()
    assert "'my gate'" in script
    assert f"--pyargs {MODULE}" in script
    if schema:
        check(schema, here / target)
    assert text.count("overwrite: true") == text.count("uses: actions/upload-artifact@")


def test_a_config_that_is_there_stays_and_gets_its_job(here, capsys):
    assert main(["init", "gate"]) == 0
    config = (here / "gate.yaml").read_text() + "# mine\n"
    (here / "gate.yaml").write_text(config)
    assert main(["init", "gate", "--ci", "gitlab"]) == 0
    assert (here / "gate.yaml").read_text() == config
    assert main(["init", "gate", "--ci", "buildkite"]) == 2
    assert "specdec-ci.sh is there already and stays as it is" in capsys.readouterr().err
    assert not (here / ".buildkite").exists()


@pytest.fixture
def job(here):
    """A job whose interpreter writes down its arguments and exits with the next of some codes."""
    assert main(["init", "gate", "--ci", "github"]) == 0
    python = here / ".specdec-env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\nprintf '%s\\n' \"$*\" >> calls\nmkdir -p specdec-run; touch specdec-run/${WRITTEN:-plan.json}\n"
        "code=$(head -n 1 codes); sed -i 1d codes; exit $code\n"
    )
    python.chmod(0o755)

    def call(*codes, depth="smoke"):
        (here / "codes").write_text("".join(f"{code}\n" for code in codes))
        ran = subprocess.run(["sh", "specdec-ci.sh", depth], capture_output=True, text=True, check=False)
        return ran.returncode, (here / "calls").read_text().splitlines()

    return call


@pytest.mark.parametrize("codes, calls", [((0,), 1), ((1,), 1), ((76,), 1), ((78,), 1), ((75, 0), 2), ((75, 75), 2), ((75, 1), 2)])
def test_only_infrastructure_is_asked_again_and_the_last_code_counts(job, codes, calls):
    code, called = job(*codes)
    assert (code, len(called)) == (codes[-1], calls)
    assert re.search(r"--specdec-config=gate .*--specdec-exit-codes .*--specdec-depth=smoke --specdec-run-dir=specdec-run$", called[0])
    assert all(call.endswith("--specdec-resume=specdec-run") for call in called[1:])


@pytest.mark.parametrize("written, calls", [("matrix.json", 2), ("session", 1)])
def test_a_matrix_is_asked_again_and_a_run_without_a_plan_is_not(job, monkeypatch, written, calls):
    monkeypatch.setenv("WRITTEN", written)
    code, called = job(75, 75)
    assert (code, len(called)) == (75, calls)


def test_an_upgrade_is_compared_with_the_run_that_the_environment_names(job, monkeypatch):
    monkeypatch.setenv("SPECDEC_AGAINST", "the old run")
    code, called = job(75, 0)
    assert (code, ["--specdec-against=the old run " in call for call in called]) == (0, [True, True])


def test_a_job_of_a_shipped_config_hides_it_by_none(here, capsys):
    assert main(["init", "qwen3-eagle3", "--ci", "gitlab"]) == 0
    assert not (here / "qwen3-eagle3.yaml").exists()
    assert '--specdec-config="${SPECDEC_CONFIG:-qwen3-eagle3}"' in (here / "specdec-ci.sh").read_text()
    assert "vllm serving" in capsys.readouterr().out
    assert main(["init", "qwen3-eagle3"]) == 2
    assert capsys.readouterr().err.startswith("qwen3-eagle3 is a config of the package, which one written here would hide")
    assert not (here / "qwen3-eagle3.yaml").exists()


MATRIX = """engine: {kind: reference, model: target}
variants: {ngram: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}
matrix: {axes: {dtype: {wide: {engine: {args: {dtype: float32}}}, narrow: {engine: {args: {dtype: float16}}}}}}
"""


def test_a_matrix_gets_a_job_and_the_command_that_lists_its_cells(here, capsys):
    (here / "fleet.yaml").write_text(MATRIX)
    assert main(["init", "fleet", "--ci", "github"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("wrote .github/workflows/specdec.yml, specdec-ci.sh, specdec-comment.sh: a matrix of 2 cells in 2 groups\n")
    assert '--specdec-config="${SPECDEC_CONFIG:-fleet}"' in (here / "specdec-ci.sh").read_text()
    (command,) = (line.split()[2:] for line in out.splitlines() if line.startswith("  python -m"))
    assert main(command[1:]) == 0


def test_a_matrix_with_a_mistake_gets_no_job(here, capsys):
    (here / "fleet.yaml").write_text(MATRIX.replace("wide: {engine", "wide: {engin"))
    assert main(["init", "fleet", "--ci", "github"]) == 2
    assert "engin" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["fleet.yaml"]


def test_an_earlier_run_is_moved_aside(job, here):
    (here / "specdec-run").mkdir()
    (here / "specdec-run/mine").write_text("kept")
    assert job(0)[0] == 0
    assert [path.read_text() for path in here.glob("specdec-run.*/mine")] == ["kept"]


@pytest.mark.nightly
def test_the_script_judges_the_reference_pair(here, monkeypatch):
    assert main(["init", "gate", "--suites", "--ci", "github"]) == 0
    (here / ".specdec-env").symlink_to(sys.prefix)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k 'greedy and draft' -p no:cacheprovider")
    ran = subprocess.run(["sh", "specdec-ci.sh", "smoke"], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout
    assert "RESULT: clean" in ran.stdout
    for name in ("specdec-run/run.json", "specdec-run/report.html", "specdec-run/report.md", "specdec.xml"):
        assert (here / name).is_file()


GH = """#!/bin/sh
printf '%s\\n' "$*" >> gh-calls
case "$*" in *--jq*) printf "$FOUND" ;; esac
"""


@pytest.mark.parametrize("report", ["report.md", "matrix.md"])
@pytest.mark.parametrize("found, last", [
    ("", "api repos/o/r/issues/7/comments -F body=@specdec-comment.md"),
    ("41\\n42\\n", "api --method PATCH repos/o/r/issues/comments/41 -F body=@specdec-comment.md"),
])  # fmt: skip
def test_a_pull_request_has_one_comment(here, report, found, last):
    assert main(["init", "gate", "--ci", "github"]) == 0
    (here / "gh").write_text(GH)
    (here / "gh").chmod(0o755)
    (here / "specdec-run").mkdir()
    (here / "specdec-run" / report).write_text("## specdec\n")
    environment = {**os.environ, "PATH": f"{here}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "o/r", "FOUND": found}
    subprocess.run(["sh", "specdec-comment.sh", "gate", "7"], env=environment, check=True)
    assert (here / "gh-calls").read_text().splitlines()[-1] == last
    assert (here / "specdec-comment.md").read_text() == "<!-- pytest-specdec gate -->\n## specdec\n"


def test_the_action_is_valid_and_runs_what_the_package_ships():
    check("vendor.github-actions", ACTION)
    action = yaml.load(ACTION.read_text(), "action.yml").data
    assert [step["with"]["overwrite"] for step in action["runs"]["steps"] if "upload-artifact" in step.get("uses", "")] == [True]
    scripts = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    for script in scripts:
        subprocess.run(["sh", "-n", "-c", script], check=True)
        assert "${{" not in script, "an input in a script is code to whoever sets it"
        for path in re.findall(r"pytest_specdec/config/ci/[\w.-]+", script):
            assert (ROOT / path).is_file()
    assert shlex.split(action["inputs"]["suites"]["default"]) == ["--pyargs", MODULE]


def run_step(name, here):
    """Run a step of the action as GitHub does; return what it printed."""
    steps = yaml.load(ACTION.read_text(), "action.yml").data["runs"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == name]
    environment = {**os.environ, "GITHUB_OUTPUT": str(here / "output")}
    return subprocess.run(["sh", "-e", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout


def test_the_action_reads_a_run_and_the_groups_of_a_matrix(here):
    python = here / ".specdec-env/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nif [ "$1" = -m ]; then echo "$*"; else exec {sys.executable} -S "$@"; fi\n')
    python.chmod(0o755)
    assert run_step("Annotate", here) + run_step("Class", here) == ""
    for group in ("groups/off", "groups/on"):
        (here / "specdec-run" / group).mkdir(parents=True)
    (here / "specdec-run/groups/on/run.json").touch()
    (here / "specdec-run/matrix-report.json").write_text(json.dumps({"class": "infrastructure"}))
    assert run_step("Annotate", here) == "-m pytest_specdec report specdec-run/groups/on/run.json --format annotations\n"
    run_step("Class", here)
    (here / "specdec-run/matrix-report.json").rename(here / "specdec-run/run.json")
    run_step("Class", here)
    assert (here / "output").read_text() == "class=infrastructure\n" * 2


def test_the_job_for_github_annotates_as_the_action_does():
    job = yaml.load((ROOT / "pytest_specdec/config/ci/github.yml").read_text(), "github.yml").data["jobs"]["specdec"]
    action = yaml.load(ACTION.read_text(), "action.yml").data["runs"]
    (written, run_here) = ([step["run"] for step in of["steps"] if step.get("name") == "Annotate"] for of in (job, action))
    assert written == run_here


def test_annotations_name_findings_first_and_escape_what_a_runner_would_carry_out():
    assert github_annotations.render(GREEN) == ""
    lines = github_annotations.render(MIXED).splitlines()
    kinds = [line.split()[0] for line in lines]
    assert kinds == sorted(kinds)
    assert len([kind for kind in kinds if kind == "::error"]) == min(len(MIXED.findings), github_annotations.MOST)
    for line in lines:
        assert re.fullmatch(r"::(error|warning) title=[^:,\r\n]*::[^\r\n]*", line)
        assert not re.search(r"%(?!25|0A|0D|3A|2C)", line)
        assert not set("\x1b\u202e") & set(line)


@pytest.mark.parametrize("word, kind", [(UpgradeWord.FINE, ""), (UpgradeWord.UNKNOWN, "warning"), (UpgradeWord.WORSE, "error")])
def test_an_upgrade_that_is_not_fine_is_annotated_before_all_else_of_its_kind(word, kind):
    upgrade = upgraded_by(word, "CHANGED, 7%")
    expected = [f"::{kind} title=UPGRADE::CHANGED, 7%25"] if kind else []
    assert github_annotations.render(replace(GREEN, upgrade=upgrade)).splitlines() == expected
    lines = github_annotations.render(replace(MIXED, upgrade=upgrade)).splitlines()
    assert [line for line in lines if line.startswith(f"::{kind} ")][:1] == expected
    for each in ("error", "warning"):
        assert sum(line.startswith(f"::{each} ") for line in lines) <= github_annotations.MOST


def test_the_report_command_prints_annotations(here, capsys):
    (here / "run.json").write_text(run.render(MIXED))
    assert main(["report", ".", "--format", "annotations"]) == 0
    assert capsys.readouterr().out == github_annotations.render(MIXED)
    assert [path.name for path in here.iterdir()] == ["run.json"]
    assert json.loads((here / "run.json").read_text())["class"] == "finding"

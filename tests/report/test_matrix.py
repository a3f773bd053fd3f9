"""The report of a matrix: its class, its table, its findings over cells, and what is missing of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from pytest_specdec.model.matrix_run import GroupRun
from pytest_specdec.model.status import State, Status
from pytest_specdec.model.verdict import Outcome
from pytest_specdec.report import matrix, matrix_documents, matrix_markdown, matrix_page, matrix_plan, matrix_terminal
from pytest_specdec.report.run import PytestOutcome, RunClass
from pytest_specdec.report.table import Tone
from tests.report.matrices import MATRIX, MATRIX_REPORT, STORED, group_run, matrix_of, report_of, stored
from tests.report.runs import FAILED, GREEDY, HOSTILE, PLAN, SPEED, judgement
from tests.report.test_golden import text_of

ON, OFF = (group.cell_names for group in MATRIX.groups)
CLEAN = report_of(STORED)


def group_of(run_class, cells=OFF):
    """Return the run of a group of one class."""
    lost = judgement(None, PytestOutcome.ERROR, pair=cells[0], workload="chat", family=GREEDY.family, error="died")
    runs = {
        RunClass.CLEAN: lambda: group_run(cells),
        RunClass.FINDING: lambda: group_run(cells, cells),
        RunClass.SETUP_INVALID: lambda: with_judgement(cells, judgement(_open(cells[0], Outcome.INVALID), PytestOutcome.FAILED)),
        RunClass.INFRASTRUCTURE: lambda: with_judgement(cells, lost),
        RunClass.UNDECIDED: lambda: with_judgement(cells, judgement(_open(cells[0], Outcome.INCONCLUSIVE), PytestOutcome.FAILED)),
    }
    made = runs[run_class]()
    assert made.run_class is run_class
    return made


def with_judgement(cells, another):
    healthy = group_run(cells)
    return replace(healthy, judgements=(*healthy.judgements, another))


def _open(cell, outcome):
    return replace(GREEDY, pair=cell, outcome=outcome, headline="30 tokens are too few", settle="more tokens")


def terminal_text(report, **options):
    return text_of(matrix_terminal.lines(report, **options))


def test_the_reason_of_a_group_is_what_failed_and_not_what_was_refused():
    refused = judgement(_open(OFF[0], Outcome.REFUSED), PytestOutcome.SKIPPED)
    failed = group_of(RunClass.SETUP_INVALID)
    run = replace(failed, judgements=(refused, *failed.judgements))
    (result,) = [
        group for group in report_of(STORED, {"async-on": group_run(ON), "async-off": run}).groups if group.directory == "async-off"
    ]
    assert result.reason == "30 tokens are too few"


@pytest.mark.parametrize("worse", list(RunClass))
@pytest.mark.parametrize("other", list(RunClass))
def test_the_class_of_the_whole_is_the_groups_that_counts_first(worse, other):
    runs = {"async-on": group_of(worse, ON), "async-off": group_of(other, OFF)}
    order = list(RunClass)
    report = report_of(STORED, runs)
    assert report.run_class is order[min(order.index(worse), order.index(other))]
    assert report.exit_code(by_class=True) == report.run_class.exit_code
    assert report.exit_code(by_class=False) == int({worse, other} != {RunClass.CLEAN})


def test_a_cell_without_results_is_infrastructure():
    report = report_of(STORED, {"async-off": None})
    assert (report.run_class, report.red) == (RunClass.INFRASTRUCTURE, True)
    assert report.missing == dict.fromkeys(OFF, "no run.json")
    assert f"MISSING: 3 cells ({', '.join(OFF)}): no run.json" in terminal_text(report)
    assert f"<li>{OFF[2]}: no run.json</li>" in matrix_page.render(report)
    assert f"- {OFF[2]}: no run.json\n" in matrix_markdown.render(report)


def test_a_cell_that_its_groups_run_did_not_judge_is_missing():
    report = report_of(STORED, {"async-off": group_run(OFF[:2])})
    assert report.missing == {OFF[2]: "the group's run.json holds no judgement of this cell"}
    assert report.run_class is RunClass.INFRASTRUCTURE


def test_a_shard_is_judged_by_its_own_cells_and_the_whole_by_all():
    shard = stored(MATRIX, *ON)
    assert report_of(shard).run_class is RunClass.CLEAN
    assert "3 of the matrix not in this run" in terminal_text(report_of(shard))
    whole = report_of(shard, expected=[cell.name for cell in shard.matrix.cells])
    assert (whole.run_class, whole.red, [*whole.missing]) == (RunClass.INFRASTRUCTURE, True, [*OFF])


def test_cells_outside_the_selection_are_in_no_part_of_the_report():
    report = report_of(STORED, red=(*ON, OFF[2]), expected=OFF[:2])
    assert [result.name for result in report.results] == [cell["name"] for cell in matrix_documents.document(report)["cells"]] == [*OFF[:2]]
    assert [group.directory for group in report.groups] == ["async-off"]
    assert (report.findings, report.missing) == ((), {})
    assert report.run_class is RunClass.FINDING, "the run of the group fails by a cell that the report leaves out"
    assert f"FINDING: async-off: in cells outside the selection: {OFF[2]}\n" in terminal_text(report)


def test_an_error_of_the_capture_fails_though_no_test_does():
    """As in the session itself."""
    run = group_run(OFF, status=Status(state=State.INCOMPLETE, error="no space left\nwith a log"))
    report = report_of(STORED, {"async-off": run})
    assert (report.run_class, report.exit_code(by_class=False)) == (RunClass.INFRASTRUCTURE, 1)
    assert "INFRASTRUCTURE: async-off: no space left\n" in terminal_text(report)


def test_nothing_captured_is_not_clean():
    report = matrix.build(replace(STORED, groups={}), (), directory="")
    assert (report.run_class, report.red) == (RunClass.INFRASTRUCTURE, True)


def test_a_finding_outweighs_missing_cells():
    assert report_of(STORED, {"async-off": None}, red=ON).run_class is RunClass.FINDING


def test_one_cause_in_many_cells_is_one_finding_with_its_axis_value():
    (finding,) = MATRIX_REPORT.findings
    assert finding.cause.name == "accept-all"
    assert finding.pattern.red == ON
    assert finding.pattern.clean == OFF
    assert finding.place == "red in all 3 cells with async=on, in none of the 3 with async=off"
    assert finding.cause.tests == "6 tests: greedy, sampling"


def test_a_cell_that_failed_by_another_fault_does_not_count_as_clean():
    other = replace(FAILED, pair=OFF[0], names="rewinds the cache twice")
    run = with_judgement(OFF, judgement(other, PytestOutcome.FAILED))
    report = report_of(STORED, {"async-off": run}, red=ON)
    places = {finding.cause.name: finding.place for finding in report.findings}
    assert places["accept-all"] == "red in all 3 cells with async=on, in none of the 2 with async=off (1 other cell counts neither way)"
    assert places["rewinds the cache twice"] == "red in 1 of 3 cells: async=off, variant=eagle3-k3 (3 other cells count neither way)"


@pytest.mark.parametrize("outcome, result", [
    (Outcome.SUSPICIOUS, PytestOutcome.SKIPPED), (Outcome.NOT_DECIDED, PytestOutcome.PASSED),
    (Outcome.FAIL, PytestOutcome.WAIVED), (Outcome.INVALID, PytestOutcome.ERROR),
])  # fmt: skip
def test_what_is_open_or_waived_is_not_called_clean(outcome, result):
    run = with_judgement(OFF, judgement(_open(OFF[0], outcome), result))
    (finding,) = report_of(STORED, {"async-off": run}, red=ON).findings
    assert finding.pattern.open == 1


def test_a_summary_of_a_group_keeps_headlines_and_no_evidence():
    result = matrix.summarise("async-on", GroupRun(group="async-on", cells=ON), group_run(ON, ON))
    leader = result.cells[0].causes[0].leader
    assert leader.verdict.headline == FAILED.headline
    assert (leader.verdict.evidence, leader.verdict.figures) == ((), {})


@pytest.mark.parametrize("run_class, line", [
    (RunClass.SETUP_INVALID, "SETUP INVALID: async-off: 30 tokens are too few"),
    (RunClass.INFRASTRUCTURE, "INFRASTRUCTURE: async-off: eagle3-k3--async-off greedy NOT JUDGED: died"),
    (RunClass.UNDECIDED, "UNDECIDED: async-off: 30 tokens are too few"),
])  # fmt: skip
def test_a_group_without_a_decision_says_why(run_class, line):
    report = report_of(STORED, {"async-off": group_of(run_class)})
    assert line in terminal_text(report)
    assert line in matrix_page.render(report)
    assert "**" + line.partition(":")[0] in matrix_markdown.render(report)


@pytest.mark.parametrize("runs, sign, tone", [
    ({"async-off": group_of(RunClass.UNDECIDED)}, "⚠️", Tone.UNSURE),
    ({"async-off": group_of(RunClass.SETUP_INVALID)}, "❌", Tone.BAD),
    ({"async-off": group_of(RunClass.INFRASTRUCTURE)}, "❌", Tone.BAD),
    ({"async-off": None}, "❌", Tone.BAD),
])  # fmt: skip
def test_what_is_open_or_missing_has_one_tone_in_every_format(runs, sign, tone):
    report = report_of(STORED, runs)
    (line,) = (*matrix_terminal.open_groups(report), *matrix_terminal.missing_cells(report))
    assert (line.tone, (line,) in matrix_terminal.lines(report)) == (tone, True)
    assert f'<p class="{tone.value}">{line.text}</p>' in matrix_page.render(report)
    assert f"\n{sign} **{line.text.partition(':')[0]}" in matrix_markdown.render(report)


def test_a_long_table_has_red_cells_and_counts_the_rest():
    whole = matrix_of(**{"async": ("on", "off"), "kv": ("auto", "fp8"), "tp": ("1", "2")})
    red = whole.cells[4].name
    report = replace(report_of(stored(whole), red=(red,)), families=("greedy",))
    closed = {cell.name: {"greedy": cell.statuses["greedy"]} for cell in report.results[3:]}
    groups = [
        replace(g, cells=tuple(replace(cell, statuses=closed.get(cell.name, cell.statuses)) for cell in g.cells)) for g in report.groups
    ]
    report = replace(report, groups=tuple(groups))
    short, long = terminal_text(report), terminal_text(report, verbose=True)
    assert "not in the table: 3 with something open, 20 in which all is ok; -v, or a page of the report, shows all" in short
    assert [line.split()[0] for line in short.splitlines() if line.endswith(" FAIL")] == [red]
    assert sum(line.endswith(" ok") for line in long.splitlines()) == 23
    assert "not in the table" not in long


def test_a_table_of_very_many_red_cells_is_cut():
    whole = matrix_of(kv=tuple("abcdefgh"), tp=tuple("1234"))
    text = terminal_text(report_of(stored(whole), red=[cell.name for cell in whole.cells]))
    assert sum("FAIL" in line for line in text.splitlines()) == matrix_terminal.MOST_ROWS
    assert f"not in the table: {96 - matrix_terminal.MOST_ROWS} red; " in text


def test_the_tone_of_a_cell_is_its_worst():
    tones = {cell.name: cell.tone for cell in MATRIX_REPORT.results}
    assert (tones[ON[0]], tones[OFF[0]]) == (Tone.BAD, Tone.UNSURE)


def test_a_thousand_cells_fit_a_comment_and_what_is_cut_is_counted():
    whole = matrix_of(**{axis: tuple("abcdefgh") for axis in ("one", "two", "three")})
    summary = matrix.summarise("", GroupRun(group="", cells=ON), group_run(ON))
    groups = []
    for group in whole.groups[:334]:
        cells = tuple(replace(cell, name=name) for cell, name in zip(summary.cells, group.cell_names, strict=True))
        groups.append(replace(summary, directory=group.name, group=group.name, cells=cells))
    text = matrix_markdown.render(matrix.build(stored(whole), groups, directory=""))
    assert len(text.encode()) < 65_536
    assert "sections left out for size; matrix-report.json has everything." in text


LARGE = matrix_of(**{axis: tuple("abcdefgh") for axis in ("tensor-parallel-size", "kv-cache-dtype", "attention-backend")})


@pytest.mark.parametrize("red, missing, is_open", [(1, 0, 400), (1, 400, 0), (400, 0, 0)])
def test_findings_and_cells_fit_a_comment_beside_very_many_groups_of_a_kind(red, missing, is_open):
    """Each open or missing group has a reason of its own, and a finding may be in all cells."""
    kinds = [*["red"] * red, *["missing"] * missing, *["open"] * is_open, "clean"]
    groups = []
    for kind, group in zip(kinds, LARGE.groups, strict=False):
        part, reason = GroupRun(group=group.name, cells=group.cell_names), f"{group.name}: {'no space left on device; ' * 8}"
        run = None if kind == "missing" else group_run(part.cells, part.cells if kind == "red" else ())
        result = matrix.summarise(group.name, part, run, reason)
        groups.append(replace(result, run_class=RunClass.UNDECIDED, reason=reason) if kind == "open" else result)
    report = matrix.build(stored(LARGE), groups, directory="")
    text = matrix_markdown.render(report)
    assert len(text.encode()) < 65_536
    assert report.findings[0].place in text
    assert "\n| cell |" in text
    assert re.search(r"sections? left out for size; matrix-report.json has everything.", text)
    assert re.search(r"_and \d+ more in matrix-report.json_", text)


def test_results_for_machines_have_axis_values_and_classes():
    document = json.loads(matrix_documents.documents(MATRIX_REPORT, [])["matrix-report.json"])
    assert document["schema"] == "pytest-specdec/matrix-report/1"
    assert document["findings"][0]["separations"] == [{"values": {"async": "on"}, "red": True}]
    assert {cell["name"]: cell["statuses"]["greedy"] for cell in document["cells"]} == dict.fromkeys(ON, "FAIL") | dict.fromkeys(OFF, "ok")
    assert [group["class"] for group in document["groups"]] == ["finding", "clean"]
    assert [*matrix_documents.documents(MATRIX_REPORT, ["html", "junit", "md"])] == ["matrix-report.json", "matrix.html", "matrix.md"]


def test_hostile_names_and_reasons_are_escaped_everywhere():
    cells = tuple(replace(cell, name=f"{cell.name}{HOSTILE}", variant=HOSTILE) for cell in MATRIX.groups[0].cells)
    whole = replace(MATRIX, groups=(replace(MATRIX.groups[0], cells=cells), MATRIX.groups[1]))
    names = [cell.name for cell in cells]
    slow = judgement(replace(SPEED, pair=names[0], outcome=Outcome.FAIL, cell=HOSTILE), PytestOutcome.FAILED)
    run = group_run(names, names)
    run = replace(run, judgements=(*run.judgements, slow))
    report = report_of(stored(whole), {"async-on": run, "async-off": None})
    report = replace(report, missing=dict.fromkeys(OFF, HOSTILE), directory=HOSTILE, config=HOSTILE)
    texts = matrix_documents.documents(report, ["md", "html"])
    terminal = text_of((*matrix_terminal.lines(report), matrix_terminal.result(report)))
    for text in (terminal, texts["matrix.md"], texts["matrix.html"]):
        assert not set("\x1b\r\u202e") & set(text)
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]
    assert "<script>" not in texts["matrix.md"] + texts["matrix.html"]


def differently_named(cells, names):
    """Return the run of a group whose cells fail by a fault of another name each."""
    failures = (replace(FAILED, pair=cell, names=name) for cell, name in zip(cells, names, strict=True))
    return replace(
        group_run(cells), judgements=tuple(judgement(one, PytestOutcome.FAILED, nodeid=f"greedy[{one.pair}]") for one in failures)
    )


def test_findings_of_one_fault_by_several_names_are_told_together():
    """One fault is named in one cell and in another not: each finding alone goes with nothing."""
    report = report_of(STORED, {"async-on": differently_named(ON, ("accept-all", "leak", "leak"))})
    together = "red in all 3 cells with async=on, in none of the 3 with async=off"
    assert f"ALL 2 FINDINGS: {together}\n" in terminal_text(report)
    assert text_of([matrix_terminal.result(report)]) == f"RESULT: finding: leak, and 1 more: {together}\n"
    assert "ALL 2 FINDINGS" in matrix_page.render(report)
    assert "ALL 2 FINDINGS" in matrix_markdown.render(report)
    assert matrix_documents.document(report)["together"]["place"] == together


def test_findings_that_nothing_separates_are_not_told_together():
    mixed = differently_named(ON, ("accept-all", "leak", "leak"))
    scattered = {"async-on": mixed, "async-off": differently_named(OFF[:1], ("leak",))}
    assert report_of(STORED, scattered).joint_pattern is None
    assert MATRIX_REPORT.joint_pattern is None, "one finding has all of these cells"


def test_cells_that_were_not_captured_are_not_counted_as_judged():
    lost = [judgement(None, PytestOutcome.ERROR, pair=cell, workload="chat", family=GREEDY.family, error="not captured") for cell in OFF]
    report = report_of(STORED, {"async-off": replace(group_run(OFF), judgements=tuple(lost))}, red=ON[:1])
    assert matrix_terminal.headline(report) == "MATRIX: fleet, smoke: 1 finding in 1 of 3 cells; 3 of 6 cells judged"
    assert terminal_text(report).splitlines()[1].startswith("WRONG: 1 of 3 cells: ")


def test_a_matrix_with_missing_cells_is_not_headed_by_nothing_wrong():
    runs = {"async-off": group_run(OFF)}
    assert matrix_terminal.headline(matrix.make(STORED, runs)) == (
        "MATRIX: fleet, smoke: no finding in what was judged; 3 of 6 cells judged; 3 missing"
    )
    assert (
        matrix_terminal.headline(matrix.make(STORED, {})) == "MATRIX: fleet, smoke: nothing could be judged; 0 of 6 cells judged; 6 missing"
    )


def test_a_plan_bounds_the_false_alarms_of_all_groups_together():
    two = matrix_plan.lines({"one": PLAN, "two": PLAN}, name="fleet", origin="run", replayed=False, cells=4)
    assert two[1] == "  matrix: 4 cells in 2 groups of one baseline each, 6 judgements"
    assert two[-1] == "  together 10 boots, about 6:10; false alarm in any group, at most: 0.0004 (correctness)"
    lone = replace(PLAN, pairs=PLAN.pairs[:1], boots=PLAN.boots[:1], judgements=(replace(PLAN.judgements[0], alpha=0.7),))
    one = matrix_plan.lines({"one": lone}, name="fleet", origin="run", replayed=False, cells=1)
    assert one[1:] == (
        "  matrix: 1 cell in 1 group of one baseline each, 1 judgement",
        "  one: 1 cell, 1 boot, about 3:05",
        "  together 1 boot, about 3:05; false alarm in any group, at most: 1 (correctness)",
    )


def test_the_last_lines_say_what_to_type_next():
    runs = {name: group_run(cells, cells[:1]) for name, cells in (("async-on", ON), ("async-off", OFF))}
    show = text_of(matrix_terminal.next_steps(matrix.make(STORED, runs)))
    assert show.startswith("Next: read all of its evidence: python -m pytest_specdec show ")
    incomplete = replace(runs["async-off"], status=Status(state=State.INCOMPLETE))
    for missing in (None, incomplete):
        lines = text_of(matrix_terminal.next_steps(matrix.make(STORED, {**runs, "async-off": missing})))
        assert lines == f"Next: resume the incomplete capture: {runs['async-on'].commands.resume}\n"
    assert matrix_terminal.next_steps(matrix.make(STORED, {name: group_run(part.cells) for name, part in STORED.groups.items()})) == ()

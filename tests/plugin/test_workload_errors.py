"""A workload that cannot be captured or judged as its mark says is a usage error at collection."""

from __future__ import annotations

import pytest

CASES = [
    ("workload('a/../../b')", "greedy", "*workload name 'a/../../b'*"),
    ("workload('')", "greedy", "*found the workload name ''*"),
    ("workload('chat.more1')", "greedy", "*workload name 'chat.more1'*"),
    ("workload('chat.calibration')", "greedy", "*workload name 'chat.calibration'*"),
    ("workload('chat', requests=0)", "greedy", "*without requests: chat*"),
    ("workload('chat', take={Depth.SMOKE: -1})", "greedy", "*-1 requests *smoke depth*"),
    ("TWICE", "greedy", "*two requests *'chat-0' in chat*"),
    ("workload('chat', body={'temperature': 0.7})", "greedy", "*chat-0 at temperature 0.7*greedy*"),
    ("workload('chat', body={'temperature': None})", "greedy", "*chat-0 at the server's own temperature*"),
    ("workload('chat', body={'temperature': 0})", "sampling", "*no request in chat *sampling*"),
]


@pytest.mark.parametrize("workload, family, line", CASES, ids=[case[0] for case in CASES])
def test_a_wrong_workload_is_a_usage_error(project, workload, family, line):
    project.tests(
        "import pytest\nfrom dataclasses import replace\nfrom sample import *\n\n"
        "TWICE = replace(workload('chat'), requests=workload('chat').requests[:1] * 2)\n\n"
        f"@pytest.mark.specdec({workload}, family={family!r})\ndef test_it(specdec_captured): pass\n"
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line, "  expected: *", "  remedy:   *"])
    assert not project.captures

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.config import lint, load
from pytest_specdec.engines.registry import engine_of
from pytest_specdec.engines.vllm import RULES
from pytest_specdec.errors import ConfigError

SUITES = Path(__file__).parents[2] / "suites" / "configs"


@pytest.fixture
def config(tmp_path):
    """Load a config given as text."""

    def loaded(text):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        return load.load(path)

    return loaded


def check(config):
    """Check a config by the rules of its engine."""
    return lint.check(config, engine_of(config.engine.kind).rules)


def told(problems):
    """Problems as line, path and what was found."""
    return [(problem.line, problem.path, problem.found) for problem in problems]


def test_the_config_that_comes_with_the_suites_is_a_fair_pair():
    assert check(load.load(SUITES / "reference.yaml")) == ()


LOSSY = [
    (
        "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection_sample_method: synthetic}",
        "speculative-config.rejection_sample_method",
    ),
    (
        "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection-sample-method: fly}",
        "speculative-config.rejection-sample-method",
    ),
    (
        'speculative_config: \'{"num_speculative_tokens": 3, "rejection_sample_method": "fly"}\'',
        "speculative_config.rejection_sample_method",
    ),
    ("speculative-config.rejection_sample_method: fly\n      spec-tokens: 3", "speculative-config.rejection_sample_method"),
    (
        "speculative-config: {num_speculative_tokens: 3, acceptance_method: typical_acceptance_sampler}",
        "speculative-config.acceptance_method",
    ),
    ("spec-decoding-acceptance-method: typical_acceptance_sampler\n      spec-tokens: 3", "spec-decoding-acceptance-method"),
]


@pytest.mark.parametrize("setting, path", LOSSY)
def test_a_lossy_mode_is_refused_unless_the_config_says_lossy(config, setting, path):
    text = f"engine: {{kind: vllm, model: m}}\nvariants:\n  v:\n    args:\n      {setting}\n"
    with pytest.raises(ConfigError, match="which changes the answers") as caught:
        check(config(text))
    assert f":5  variants.v.args.{path}: found " in caught.value.what
    assert "or say lossy: true" in caught.value.what
    (warning,) = (problem for problem in check(config(f"{text}lossy: true\n")) if "changes the answers" in problem.found)
    assert (warning.refused, warning.suggestion) == (False, "")


LOSSLESS = [
    "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection_sample_method: block}",
    "speculative-config: {num_speculative_tokens: 3, acceptance_method: rejection_sampler}",
]


@pytest.mark.parametrize("setting", LOSSLESS)
def test_the_ordinary_modes_are_not_lossy(config, setting):
    text = f"engine: {{kind: vllm, model: m}}\nvariants:\n  v:\n    args:\n      {setting}\n"
    assert not [problem for problem in check(config(text)) if "changes the answers" in problem.found]


def test_a_lossy_mode_is_told_once_where_two_variants_share_it(config):
    mode = "spec-decoding-acceptance-method: typical_acceptance_sampler"
    text = f"engine: {{kind: vllm, model: m, args: {{{mode}, spec-tokens: 3}}}}\nvariants: {{a: {{}}, b: {{}}}}\n"
    lossy = [problem for problem in lint.lint(config(text), RULES) if "changes the answers" in problem.found]
    assert [(problem.line, problem.path) for problem in lossy] == [(1, "engine.args.spec-decoding-acceptance-method")]


UNREADABLE = [
    ("variants:\n  v: {args: {speculative-config: '{method: x'}}", 3, "variants.v.args.speculative-config", "'{method: x'"),
    ("variants:\n  v: {args: {speculative_config: [1]}}", 3, "variants.v.args.speculative_config", "[1]"),
    ("variants:\n  v: {args: {spec-tokens: 1}}\nbaseline: {args: {sc: 5}}", 4, "baseline.args.sc", "5"),
]


@pytest.mark.parametrize("text, line, path, found", UNREADABLE)
def test_a_speculative_setting_that_is_no_mapping_is_refused_with_its_line(config, text, line, path, found):
    (problem,) = lint.lint(config(f"engine: {{kind: vllm, model: m}}\n{text}\n"), RULES)
    assert (problem.line, problem.path, problem.refused) == (line, path, True)
    assert found in problem.found


UNBOOTABLE = [
    (
        "vllm",
        "{method: eagle4, num_speculative_tokens: 3}",
        ".speculative-config.method",
        '"eagle4", an unknown drafting method',
    ),
    (
        "reference",
        "{method: medusa, num_speculative_tokens: 3}",
        ".speculative-config.method",
        '"medusa", an unknown drafting method',
    ),
    ("vllm", "{method: ngram, num_speculative_tokens: 0}", ".speculative-config.num_speculative_tokens", "0, expected the number of draft"),
    (
        "vllm",
        "{method: ngram, num_speculative_tokens: three}",
        ".speculative-config.num_speculative_tokens",
        '"three", expected the number',
    ),
    ("vllm", "{method: ngram, num_speculative_tokens: true}", ".speculative-config.num_speculative_tokens", "true, expected the number"),
    ("vllm", "{method: [ngram]}", "", "no num_speculative_tokens, expected the number of draft tokens"),
    ("vllm", "{method: eagle3, model: d}", "", "no num_speculative_tokens, expected the number of draft tokens, a whole number above 0"),
]


@pytest.mark.parametrize("kind, setting, path, found", UNBOOTABLE)
def test_a_setting_with_which_no_server_boots_is_refused_with_its_line(config, kind, setting, path, found):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    args:\n      speculative-config: {setting}\n"
    with pytest.raises(ConfigError) as caught:
        check(config(text))
    assert f"variants.v.args{path}: found {found}" in caught.value.what


BEFORE_0_8 = [
    ("{speculative-model: m, num-speculative-tokens: 5}", []),
    ("{speculative-model: m}", ["no num_speculative_tokens"]),
    ("{speculative-model: '[ngram]', num-speculative-tokens: 0}", ["0"]),
    ("{speculative-model: m, num-speculative-tokens: 5, ngram-prompt-lookup-max: 3, disable-logprobs-during-spec-decoding: false}", []),
]


@pytest.mark.parametrize("args, found", BEFORE_0_8)
def test_the_flags_before_0_8_are_a_speculative_setting(config, args, found):
    text = f"engine: {{kind: vllm, model: m}}\nvariants:\n  v:\n    args: {args}\n"
    assert [problem.found for problem in lint.lint(config(text), RULES)] == found


BOOTABLE = [
    ("vllm", "{method: suffix}"),
    ("vllm", "{method: ngram, num_speculative_tokens: '4'}"),
    ("vllm", "{method: '${METHOD}', num_speculative_tokens: '${K}'}"),
    ("vllm", "{model: d, num_speculative_tokens: 1}"),
]


@pytest.mark.parametrize("kind, setting", BOOTABLE)
def test_a_setting_that_may_boot_is_not_refused(config, kind, setting):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    args:\n      speculative-config: {setting}\n"
    assert not [problem for problem in lint.lint(config(text), engine_of(kind).rules) if problem.refused]


def test_a_method_of_a_newer_release_is_a_warning(config):
    text = "engine: {kind: vllm, model: m}\nvariants: {v: {args: {speculative-config: {method: zebra, num_speculative_tokens: 3}}}}\n"
    (warning,) = (problem for problem in check(config(text)) if "zebra" in problem.found)
    assert not warning.refused


BASELINES = [
    ("vllm", "engine", "speculative-config: {num_speculative_tokens: 3, method: ngram}"),
    ("vllm", "baseline", "speculative_config: {method: ngram}"),
    ("vllm", "engine", "spec-tokens: 3"),
    ("reference", "engine", "sc: '{}'"),
]


@pytest.mark.parametrize("kind, where, setting", BASELINES)
def test_a_baseline_that_speculates_is_refused(config, kind, where, setting):
    engine = f"engine:\n  kind: {kind}\n  model: m\n"
    body = f"  args:\n    {setting}\n"
    text = engine + body + "variants: {v: {}}\n" if where == "engine" else f"{engine}variants: {{v: {{}}}}\nbaseline:\n{body}"
    with pytest.raises(ConfigError, match="a speculative setting in the baseline, expected none; put it under variants"):
        check(config(text + "lossy: true\n"))


def differing(config, **parts):
    lines = ["engine: {kind: reference, model: m, args: {max-num-seqs: 8, a: 1}, env: {E: 1}}"]
    lines += [f"{name}: {value}" for name, value in parts.items()]
    return told(check(config("\n".join(lines) + "\n")))


DIFFERENCES = [
    ("{v: {args: {max-num-seqs: 4}}}", "{}", [(2, "variants.v.args.max-num-seqs", "4 in variants.v and 8 in the baseline")]),
    ("{v: {args: {max_num_seqs: 4}}}", "{}", [(2, "variants.v.args.max_num_seqs", "4 in variants.v and 8 in the baseline")]),
    ("{v: {args: {b: x}}}", "{}", [(2, "variants.v.args.b", '"x" in variants.v and nothing in the baseline')]),
    ("{v: {args: {a: null}}}", "{args: {a: null}}", []),
    ("{v: {}}", "{args: {b: x}}", [(3, "baseline.args.b", 'nothing in variants.v and "x" in the baseline')]),
    ("{v: {env: {E: 2}}}", "{}", [(2, "variants.v.env.E", '"2" in variants.v and "1" in the baseline')]),
    ("{v: {}}", "{env: {F: 2}}", [(3, "baseline.env.F", 'nothing in variants.v and "2" in the baseline')]),
    ("{v: {args: {b: x}}}", "{args: {b: x}}", []),
    ("{v: {args: {speculative-config: {num_speculative_tokens: 3, method: ngram}}}}", "{}", []),
    ("{v: {args: {per-request-spec-decode-metrics: detailed}}}", "{}", []),
    ("{v: {args: {spec-tokens: 3, speculative-config.model: d}}}", "{}", []),
    (
        "{v: {args: {b: 1}}, w: {args: {b: 1}}}",
        "{}",
        [
            (2, "variants.v.args.b", "1 in variants.v and nothing in the baseline"),
            (2, "variants.w.args.b", "1 in variants.w and nothing in the baseline"),
        ],
    ),
]


@pytest.mark.parametrize("variants, baseline, expected", DIFFERENCES)
def test_whatever_differs_besides_the_speculative_setting_is_a_warning(config, variants, baseline, expected):
    assert differing(config, variants=variants, baseline=baseline) == expected


def test_an_argument_taken_out_of_one_arm_is_a_difference(config):
    assert differing(config, variants="{v: {args: {a: null}}}") == [(2, "variants.v.args.a", "nothing in variants.v and 1 in the baseline")]


SILENT = [
    ("vllm", "{speculative-config: {num_speculative_tokens: 3, method: ngram}}", "", ["async-scheduling"]),
    ("vllm", "{speculative-config: {num_speculative_tokens: 3, method: suffix}}", "", ["async-scheduling", "VLLM_USE_V2_MODEL_RUNNER"]),
    ("vllm", "{speculative-config: {num_speculative_tokens: 3, method: eagle3}}", "", []),
    ("vllm", "{speculative-config: {num_speculative_tokens: 3, model: d}}", "", []),
    (
        "vllm",
        "{speculative-config: {num_speculative_tokens: 3, method: suffix}}",
        "args: {no-async-scheduling: true}, env: {VLLM_USE_V2_MODEL_RUNNER: 0}",
        [],
    ),
    ("vllm", "{speculative-config: {num_speculative_tokens: 3, method: ngram}}", "args: {async_scheduling: false}", []),
]


@pytest.mark.parametrize("kind, args, pins, names", SILENT)
def test_what_the_engine_changes_by_itself_is_pinned_or_told(config, kind, args, pins, names):
    found = check(config(f"engine: {{kind: {kind}, model: m{', ' + pins if pins else ''}}}\nvariants:\n  v:\n    args: {args}\n"))
    assert [problem.found.split(":")[0] for problem in found] == [f"no {name}" for name in names]
    assert all((problem.line, problem.path, problem.refused) == (3, "variants.v", False) for problem in found)


def test_problems_come_in_the_order_of_the_file(config):
    text = "variants:\n  v: {args: {b: 1}}\n  w: {args: {c: 1}}\nengine: {kind: reference, model: m}\nbaseline: {args: {d: 1}}\n"
    lines = [problem.line for problem in check(config(text))]
    assert lines == sorted(lines)


ATTACHED = """
engine: {{kind: attach, model: m{engine}}}
baseline: {{{baseline}}}
variants:
  mine: {{{mine}}}
"""


def attached(engine="", baseline="url: 'http://a:1'", mine="url: 'http://b:1'"):
    return ATTACHED.format(engine=engine, baseline=baseline, mine=mine)


@pytest.mark.parametrize(
    "text",
    [
        attached(),
        attached(engine=", url: 'http://a:1'", baseline="", mine="body: {speculate: true}"),
        attached(mine="url: 'http://a:1', headers: {accept-language: fast}"),
        attached(mine="url: 'http://b:1', args: {draft: model, draft-tokens: 3}"),
    ],
)
def test_two_addresses_or_one_that_is_asked_differently_are_a_pair(text, config):
    assert check(config(text)) == ()


@pytest.mark.parametrize(
    "text, line, path, found",
    [
        (attached(mine="body: {}"), 5, "variants.mine.url", "nothing"),
        (attached(baseline=""), 3, "baseline.url", "nothing"),
        (attached(mine="url: 'http://A:1/v1/'"), 5, "variants.mine.url", "the baseline's own address"),
        (attached(engine=", url: 'http://a:1'", baseline="", mine=""), 2, "engine.url", "the baseline's own address"),
        (attached(mine="url: 'http://b:1', args: {draft: modle, draft-tokens: 3}"), 5, "variants.mine.args.draft", "did you mean 'model'"),
        (attached(mine="url: 'http://b:1', args: {draft: model}"), 5, "variants.mine.args", "no draft_tokens"),
    ],
)
def test_an_arm_without_an_address_or_with_the_baselines_is_refused_at_its_line(text, line, path, found, config):
    with pytest.raises(ConfigError, match=found) as caught:
        check(config(text))
    assert f"c.yaml:{line}  {path}:" in str(caught.value)


def test_a_server_started_here_beside_an_attached_baseline_is_told_of(config):
    text = "engine: {kind: vllm, model: m}\nbaseline: {url: 'http://a:1'}\nvariants:\n"
    text += "  mine: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}\n"
    assert any("its server is started here" in problem.found for problem in check(config(text)))


def test_a_key_written_out_in_a_header_is_refused(config):
    with pytest.raises(ConfigError, match=r"c.yaml:2  engine.headers.Authorization: found a secret that is written out"):
        config(attached(engine=", headers: {Authorization: Bearer open-barley}"))

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specdec.config import lint, load
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


def told(problems):
    """Problems as line, path and what was found."""
    return [(problem.line, problem.path, problem.found) for problem in problems]


def test_the_config_that_comes_with_the_suites_is_a_fair_pair():
    assert lint.check(load.load(SUITES / "reference.yaml")) == ()


def test_an_engine_of_which_nothing_is_known_is_not_linted(config):
    assert lint.lint(config("engine: {kind: other, model: m}\nvariants: {v: {args: {speculative-x: 1, y: 2}}}\n")) == ()


LOSSY = [
    (
        "vllm",
        "args",
        "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection_sample_method: synthetic}",
        "speculative-config.rejection_sample_method",
    ),
    (
        "vllm",
        "args",
        "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection-sample-method: fly}",
        "speculative-config.rejection-sample-method",
    ),
    (
        "vllm",
        "args",
        'speculative_config: \'{"num_speculative_tokens": 3, "rejection_sample_method": "fly"}\'',
        "speculative_config.rejection_sample_method",
    ),
    ("vllm", "args", "speculative-config.rejection_sample_method: fly\n      spec-tokens: 3", "speculative-config.rejection_sample_method"),
    (
        "vllm",
        "args",
        "speculative-config: {num_speculative_tokens: 3, acceptance_method: typical_acceptance_sampler}",
        "speculative-config.acceptance_method",
    ),
    (
        "vllm",
        "args",
        "spec-decoding-acceptance-method: typical_acceptance_sampler\n      spec-tokens: 3",
        "spec-decoding-acceptance-method",
    ),
    (
        "trtllm",
        "args",
        "speculative_config: {use_relaxed_acceptance_for_thinking: true}",
        "speculative_config.use_relaxed_acceptance_for_thinking",
    ),
    ("trtllm", "args", "speculative_config: {posterior_threshold: 0.1}", "speculative_config.posterior_threshold"),
    ("trtllm", "args", "speculative_config: {greedy_sampling: false}", "speculative_config.greedy_sampling"),
    ("sglang", "args", "speculative-accept-threshold-single: 0.9", "speculative-accept-threshold-single"),
    ("sglang", "args", "speculative-accept-threshold-acc: '0.5'", "speculative-accept-threshold-acc"),
    ("sglang", "env", "SGLANG_SIMULATE_ACC_LEN: 3", "SGLANG_SIMULATE_ACC_LEN"),
    ("llamacpp", "args", "spec-synth-len: 2", "spec-synth-len"),
    ("llamacpp", "args", "spec-synth-rates: '0.5,0.5'", "spec-synth-rates"),
]


@pytest.mark.parametrize("kind, place, setting, path", LOSSY)
def test_a_lossy_mode_is_refused_unless_the_config_says_lossy(config, kind, place, setting, path):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    {place}:\n      {setting}\n"
    with pytest.raises(ConfigError, match="which changes what is answered") as caught:
        lint.check(config(text))
    assert f":5  variants.v.{place}.{path}: found " in caught.value.what
    assert "or say lossy: true" in caught.value.what
    (warning,) = (problem for problem in lint.check(config(f"{text}lossy: true\n")) if "changes what is answered" in problem.found)
    assert (warning.refused, warning.suggestion) == (False, "")


LOSSLESS = [
    ("vllm", "args", "speculative-config: {num_speculative_tokens: 3, method: eagle3, rejection_sample_method: block}"),
    ("vllm", "args", "speculative-config: {num_speculative_tokens: 3, acceptance_method: rejection_sampler}"),
    ("trtllm", "args", "speculative_config: {use_relaxed_acceptance_for_thinking: false, greedy_sampling: true}"),
    ("sglang", "args", "speculative-accept-threshold-single: 1.0"),
    ("sglang", "args", "speculative-accept-threshold-acc: high"),
    ("sglang", "env", "SGLANG_SIMULATE_ACC_LEN: 0"),
    ("llamacpp", "args", "spec-type: draft-simple"),
]


@pytest.mark.parametrize("kind, place, setting", LOSSLESS)
def test_the_ordinary_modes_are_not_lossy(config, kind, place, setting):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    {place}:\n      {setting}\n"
    assert not [problem for problem in lint.check(config(text)) if "changes what is answered" in problem.found]


def test_a_lossy_mode_is_told_once_where_two_variants_share_it(config):
    text = "engine: {kind: sglang, model: m, env: {SGLANG_SIMULATE_ACC_LEN: 2}}\nvariants: {a: {}, b: {}}\n"
    found = [problem for problem in lint.lint(config(text)) if problem.refused]
    assert told(found) == [(1, "engine.env.SGLANG_SIMULATE_ACC_LEN", '"2", which changes what is answered')]


UNBOOTABLE = [
    (
        "vllm",
        "{method: eagle4, num_speculative_tokens: 3}",
        ".speculative-config.method",
        '"eagle4", which is no drafting method known here',
    ),
    (
        "reference",
        "{method: medusa, num_speculative_tokens: 3}",
        ".speculative-config.method",
        '"medusa", which is no drafting method known',
    ),
    ("vllm", "{method: ngram, num_speculative_tokens: 0}", ".speculative-config.num_speculative_tokens", "0, expected the number of draft"),
    (
        "vllm",
        "{method: ngram, num_speculative_tokens: three}",
        ".speculative-config.num_speculative_tokens",
        '"three", expected the number',
    ),
    ("vllm", "{method: ngram, num_speculative_tokens: true}", ".speculative-config.num_speculative_tokens", "true, expected the number"),
    ("vllm", "{method: eagle3, model: d}", "", "no num_speculative_tokens, expected the number of draft tokens, a whole number above 0"),
]


@pytest.mark.parametrize("kind, setting, path, found", UNBOOTABLE)
def test_a_setting_with_which_no_server_boots_is_refused_with_its_line(config, kind, setting, path, found):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    args:\n      speculative-config: {setting}\n"
    with pytest.raises(ConfigError) as caught:
        lint.check(config(text))
    assert f"variants.v.args{path}: found {found}" in caught.value.what


BOOTABLE = [
    ("vllm", "{method: suffix}"),
    ("vllm", "{method: ngram, num_speculative_tokens: '4'}"),
    ("vllm", "{method: '${METHOD}', num_speculative_tokens: '${K}'}"),
    ("vllm", "{model: d, num_speculative_tokens: 1}"),
    ("sglang", "{method: anything}"),
]


@pytest.mark.parametrize("kind, setting", BOOTABLE)
def test_a_setting_that_may_boot_is_not_refused(config, kind, setting):
    text = f"engine: {{kind: {kind}, model: m}}\nvariants:\n  v:\n    args:\n      speculative-config: {setting}\n"
    assert not [problem for problem in lint.lint(config(text)) if problem.refused]


def test_a_method_of_a_newer_release_is_a_warning(config):
    text = "engine: {kind: vllm, model: m}\nvariants: {v: {args: {speculative-config: {method: zebra, num_speculative_tokens: 3}}}}\n"
    (warning,) = (problem for problem in lint.check(config(text)) if "zebra" in problem.found)
    assert not warning.refused


BASELINES = [
    ("vllm", "engine", "speculative-config: {num_speculative_tokens: 3, method: ngram}"),
    ("vllm", "baseline", "speculative_config: {method: ngram}"),
    ("vllm", "engine", "spec-tokens: 3"),
    ("reference", "engine", "sc: '{}'"),
    ("trtllm", "engine", "speculative_config: {decoding_type: NGram}"),
    ("sglang", "baseline", "speculative-algorithm: NGRAM"),
    ("llamacpp", "engine", "md: draft.gguf"),
]


@pytest.mark.parametrize("kind, where, setting", BASELINES)
def test_a_baseline_that_speculates_is_refused(config, kind, where, setting):
    engine = f"engine:\n  kind: {kind}\n  model: m\n"
    body = f"  args:\n    {setting}\n"
    text = engine + body + "variants: {v: {}}\n" if where == "engine" else f"{engine}variants: {{v: {{}}}}\nbaseline:\n{body}"
    with pytest.raises(ConfigError, match="a speculative setting in the baseline, expected none; put it under variants"):
        lint.check(config(text + "lossy: true\n"))


def differing(config, **parts):
    lines = ["engine: {kind: reference, model: m, args: {max-num-seqs: 8, a: 1}, env: {E: 1}}"]
    lines += [f"{name}: {value}" for name, value in parts.items()]
    return told(lint.check(config("\n".join(lines) + "\n")))


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
    ("trtllm", "{speculative_config: {decoding_type: NGram}}", "", ["disable-overlap-scheduler"]),
    ("sglang", "{speculative-algorithm: EAGLE3}", "", ["max-running-requests"]),
    ("sglang", "{speculative-algorithm: NGRAM}", "args: {max-running-requests: 16}", ["disable-overlap-schedule"]),
    ("llamacpp", "{md: d.gguf}", "", ["fit"]),
    ("llamacpp", "{md: d.gguf}", "args: {fit: 'off'}", []),
]


@pytest.mark.parametrize("kind, args, pins, names", SILENT)
def test_what_the_engine_changes_by_itself_is_pinned_or_told(config, kind, args, pins, names):
    found = lint.check(config(f"engine: {{kind: {kind}, model: m{', ' + pins if pins else ''}}}\nvariants:\n  v:\n    args: {args}\n"))
    assert [problem.found.split(":")[0] for problem in found] == [f"no {name}" for name in names]
    assert all((problem.line, problem.path, problem.refused) == (3, "variants.v", False) for problem in found)


def test_problems_come_in_the_order_of_the_file(config):
    text = "variants:\n  v: {args: {b: 1}}\n  w: {args: {c: 1}}\nengine: {kind: reference, model: m}\nbaseline: {args: {d: 1}}\n"
    lines = [problem.line for problem in lint.check(config(text))]
    assert lines == sorted(lines)

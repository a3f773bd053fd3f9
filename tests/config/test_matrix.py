"""``matrix``: axes and exclusions of a config expanded to cells, in groups of one baseline each."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_specdec.config import lint, load, matrix
from pytest_specdec.config.matrix_expression import select
from pytest_specdec.engines.vllm.rules import RULES
from pytest_specdec.errors import ConfigError
from pytest_specdec.model.matrix import VARIANT

HEAD = """\
engine: {kind: vllm, model: target, args: {max-model-len: 1024, kv_cache_dtype: auto}, env: {A: "${A}"}}
variants:
  eagle3-k3: {args: {speculative-config: '{"method": "eagle3", "num_speculative_tokens": 3}'}}
  ngram-k4: {args: {speculative-config: {method: ngram, num_speculative_tokens: 4}}}
"""
EXAMPLE = (
    HEAD
    + """\
matrix:
  axes:
    engine.args.kv-cache-dtype: [bf16, fp8]
    async:
      on: {engine: {args: {async-scheduling: true}}}
      off: {engine: {args: {no-async-scheduling: true}}}
      default: {}
"""
)


@pytest.fixture
def write(tmp_path):
    """Write a config file and return its path."""

    def written(text, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.fixture
def expand(write):
    """Return the MatrixConfig of a text."""
    return lambda text: matrix.load_matrix(write(text))


def problems_of(path):
    """The problems of a config, one a line, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        matrix.load_matrix(path)
    what, *lines = caught.value.what.splitlines()
    assert what.startswith("the config has ")
    return [line.strip().removeprefix(f"{path}:") for line in lines]


def test_a_matrix_has_a_cell_for_each_variant_and_combination_and_a_group_for_each_baseline(expand):
    config = expand(EXAMPLE)
    assert config.matrix.axes == {
        "kv-cache-dtype": ("bf16", "fp8"),
        "async": ("on", "off", "default"),
        "variant": ("eagle3-k3", "ngram-k4"),
    }
    assert {group.name: group.cell_names for group in config.matrix.groups} == {
        "bf16--async-on": ("eagle3-k3--bf16--async-on", "ngram-k4--bf16--async-on"),
        "bf16--async-off": ("eagle3-k3--bf16--async-off", "ngram-k4--bf16--async-off"),
        "bf16--async-default": ("eagle3-k3--bf16--async-default", "ngram-k4--bf16--async-default"),
        "fp8--async-on": ("eagle3-k3--fp8--async-on", "ngram-k4--fp8--async-on"),
        "fp8--async-off": ("eagle3-k3--fp8--async-off", "ngram-k4--fp8--async-off"),
        "fp8--async-default": ("eagle3-k3--fp8--async-default", "ngram-k4--fp8--async-default"),
    }
    cell = config.matrix.cells[-1]
    assert (cell.variant, cell.choices) == ("ngram-k4", {"kv-cache-dtype": "fp8", "async": "default", "variant": "ngram-k4"})
    assert list(cell.choices) == list(config.matrix.axes)


def test_a_group_is_the_config_that_one_would_write_by_hand(write, expand):
    config = expand(EXAMPLE + "    variants.args.speculative-config.num_speculative_tokens: [2, null]\n")
    group = next(group for group in config.matrix.groups if group.name == "fp8--async-on")
    by_hand = load.load(
        write(
            """\
engine: {kind: vllm, model: target, args: {max-model-len: 1024, kv_cache_dtype: fp8, async-scheduling: true}, env: {A: "${A}"}}
variants:
  eagle3-k3--fp8--async-on--num-speculative-tokens-2: {args: {speculative-config: {method: eagle3, num_speculative_tokens: 2}}}
  eagle3-k3--fp8--async-on--num-speculative-tokens-none: {args: {speculative-config: {method: eagle3}}}
  ngram-k4--fp8--async-on--num-speculative-tokens-2: {args: {speculative-config: {method: ngram, num_speculative_tokens: 2}}}
  ngram-k4--fp8--async-on--num-speculative-tokens-none: {args: {speculative-config: {method: ngram}}}
"""
        )
    )
    made = config.config(group)
    assert made.name == "mine--fp8--async-on"
    assert replace(made, name=by_hand.name, text=by_hand.text) == by_hand
    assert made.text.startswith("# Written by pytest-specdec: the config as the group fp8--async-on of mine.yaml has it.\n")
    stored = load.load(write(made.text))
    assert replace(stored, name=made.name, text=made.text) == made


def test_part_of_a_group_is_a_config_of_those_cells(expand):
    config = expand(EXAMPLE)
    (group,) = select(config.matrix, "variant=ngram-k4 and async=off and kv-cache-dtype=fp8").groups
    assert [variant.name for variant in config.config(group).variants] == ["ngram-k4--fp8--async-off"]


def test_axes_of_variants_alone_make_one_group_called_all(expand):
    config = expand(HEAD + "matrix: {axes: {variants.args.speculative-config.num_speculative_tokens: [2, 5]}}\n")
    (group,) = config.matrix.groups
    assert (group.name, config.config(group).name) == ("all", "mine")
    assert group.cell_names == tuple(f"{variant}--num-speculative-tokens-{k}" for variant in ("eagle3-k3", "ngram-k4") for k in (2, 5))


OVERLAYS = [
    ("engine.args.max-model-len: [null, 8]", "max-model-len-none", lambda config: config.engine.args, {"kv_cache_dtype": "auto"}),
    ("engine.args.c.x: [{y: 1}]", "y-1", lambda config: config.engine.args["c"], {"x": {"y": 1}}),
    ("engine.env.B: [1]", "b-1", lambda config: config.engine.env, {"A": "${A}", "B": "1"}),
    ("engine.venv: [../envs/0.31]", "envs-0-31", lambda config: config.engine.venv, "../envs/0.31"),
    ("baseline.args.max-model-len: [null]", "max-model-len-none", lambda config: config.baseline.args, {"max-model-len": None}),
    ("speed.args.x: [-0.5]", "x-minus-0-5", lambda config: config.speed.args, {"x": -0.5}),
    ("placement: [side-by-side]", "side-by-side", lambda config: config.placement.value, "side-by-side"),
    ("engine.model: {small: ./a, large: ./b}", "small", lambda config: config.engine.model, "./a"),
]


@pytest.mark.parametrize("axis, name, setting, expected", OVERLAYS)
def test_a_value_is_laid_over_the_setting_at_its_place(expand, axis, name, setting, expected):
    config = expand(HEAD + f"matrix:\n  axes:\n    {axis}\n")
    assert config.matrix.groups[0].name == name
    assert setting(config.config(config.matrix.groups[0])) == expected


def test_a_null_of_an_axis_of_variants_takes_the_engines_argument_out_of_the_variant(expand):
    config = expand(HEAD + "matrix: {axes: {variants.args.max-model-len: [null]}}\n")
    assert config.config(config.matrix.groups[0]).variants[1].args["max-model-len"] is None


def test_a_program_replaces_the_program_of_the_engine_and_its_docker_settings(expand):
    build = "build: {stable: {engine: {venv: v}}, nightly: {engine: {image: i}}}"
    config = expand(
        f"engine: {{kind: vllm, model: t, image: old, docker: {{gpus: all}}}}\nvariants: {{v: {{}}}}\nmatrix: {{axes: {{{build}}}}}\n"
    )
    stable, nightly = (config.config(group).engine for group in config.matrix.groups)
    assert (stable.venv, stable.image, stable.docker.gpus) == ("v", None, "")
    assert (nightly.venv, nightly.image, nightly.docker.gpus) == (None, "i", "all")


def test_axes_that_end_alike_are_called_by_their_places(expand):
    config = expand(HEAD + "matrix: {axes: {baseline.env.S: [1, 2], variants.env.S: [1, 3]}}\n")
    assert list(config.matrix.axes) == ["baseline.env.S", "variants.env.S", "variant"]
    assert config.matrix.cells[0].name == "eagle3-k3--baseline-env-s-1--variants-env-s-1"


def test_a_further_value_changes_no_id(expand):
    before = expand(EXAMPLE).matrix
    after = expand(EXAMPLE.replace("[bf16, fp8]", "[auto, bf16, on, fp8]")).matrix
    names = [cell.name for cell in after.cells]
    assert len(names) == 2 * len(before.cells)
    assert [name for name in names if name in {cell.name for cell in before.cells}] == [cell.name for cell in before.cells]


def test_an_exclusion_leaves_out_its_combinations_and_no_others(expand):
    config = expand(EXAMPLE + "  exclude:\n    - {async: on, kv-cache-dtype: fp8, variant: eagle3-k3}\n    - {async: default}\n")
    names = {cell.name for cell in expand(EXAMPLE).matrix.cells if cell.choices["async"] != "default"}
    assert {cell.name for cell in config.matrix.cells} == names - {"eagle3-k3--fp8--async-on"}


def allowed_combinations(levels, exclusions):
    rows = (dict(zip(levels, row, strict=True)) for row in product(*levels.values()))
    return [row for row in rows if not any(all(row[axis] == value for axis, value in exclusion.items()) for exclusion in exclusions)]


def pairs_of(rows):
    return {((one, row[one]), (other, row[other])) for row in rows for one, other in combinations(row, 2)}


@st.composite
def matrices(draw):
    """The number of values of each axis, and exclusions, that leave something."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    levels = {**{f"a{i}": [f"v{k}" for k in range(count)] for i, count in enumerate(counts)}, VARIANT: ["eagle3-k3", "ngram-k4"]}
    item = st.sampled_from(list(levels)).flatmap(lambda axis: st.tuples(st.just(axis), st.sampled_from(levels[axis])))
    exclusions = draw(st.lists(st.lists(item, min_size=1, max_size=3).map(dict), max_size=4))
    kept = []
    for exclusion in exclusions:  # each leaves out something, and not everything
        if 0 < len(allowed_combinations(levels, [*kept, exclusion])) < len(allowed_combinations(levels, kept)):
            kept.append(exclusion)
    return levels, kept


@settings(max_examples=60, deadline=None)
@given(matrices())
def test_pairwise_has_every_allowed_pair_of_values_and_no_combination_that_is_left_out(tmp_path_factory, drawn):
    levels, exclusions = drawn
    axes = "".join(f"    engine.args.{axis}: [{', '.join(values)}]\n" for axis, values in levels.items() if axis != VARIANT)
    path = tmp_path_factory.getbasetemp() / "pairwise.yaml"
    path.write_text(f"{HEAD}matrix:\n  cover: pairwise\n  exclude: {json.dumps(exclusions)}\n  axes:\n{axes}")
    cells = matrix.load_matrix(path).matrix.cells
    rows = [dict(cell.choices) for cell in cells]
    allowed = allowed_combinations(levels, exclusions)
    assert all(row in allowed for row in rows)
    assert pairs_of(rows) == pairs_of(allowed)
    assert len(rows) <= len(allowed)
    assert len({cell.name for cell in cells}) == len(cells)


def test_pairwise_takes_few_of_many_combinations_and_always_the_same(expand):
    text = HEAD + "matrix:\n  cover: pairwise\n  axes:\n" + "".join(f"    engine.args.a{i}: [x, y, z]\n" for i in range(6))
    config = expand(text)
    assert len(config.matrix.cells) <= 20
    assert config.matrix == expand(text).matrix


WAIVER = "{{family: greedy, workload: w, variant: {}, bug: 'https://b', owner: me, expires: 2027-01-31}}"


def test_a_waiver_of_a_variant_is_one_of_each_of_its_cells(expand):
    entries = "".join(f"  - {WAIVER.format(name)}\n" for name in ("ngram-k4--fp8--async-off", "eagle3-k3"))
    config = expand(f"{EXAMPLE}waivers:\n{entries}")
    waivers = {group.name: config.config(group).waivers for group in config.matrix.groups}
    assert [(waiver.variant, waiver.source) for waiver in waivers["fp8--async-off"]] == [
        ("ngram-k4--fp8--async-off", "mine.yaml:13"),
        ("eagle3-k3--fp8--async-off", "mine.yaml:14"),
    ]
    assert [waiver.variant for waiver in waivers["fp8--async-on"]] == ["eagle3-k3--fp8--async-on"]


def test_a_golden_test_of_a_variant_is_that_of_each_of_its_cells(expand):
    tests = "{eagle3-k3: T::a, ngram-k4--fp8--async-off: T::b}"
    config = expand(
        EXAMPLE.replace("  axes:", "  exclude: [{async: on, variant: eagle3-k3}]\n  axes:")
        + f"gates: {{acceptance_length: {{golden: {{file: g, tests: {tests}}}}}}}\n"
    )
    golden = {group.name: config.config(group).golden for group in config.matrix.groups}
    assert golden["fp8--async-off"].tests == {"eagle3-k3--fp8--async-off": "T::a", "ngram-k4--fp8--async-off": "T::b"}
    assert golden["bf16--async-on"] is None


def test_a_golden_test_of_a_cell_is_at_the_line_of_its_variants(expand):
    config = expand(EXAMPLE + "gates:\n  acceptance_length:\n    golden:\n      file: g\n      tests:\n        eagle3-k3: T::a\n")
    group = next(group for group in config.matrix.groups if group.name == "fp8--async-off")
    lines = matrix._group_document(config, group).lines
    place = ("gates", "acceptance_length", "golden", "tests")
    assert lines[*place, "eagle3-k3--fp8--async-off"] == lines[place] + 1


def test_a_variable_that_one_value_takes_may_be_public(expand):
    config = expand(EXAMPLE.replace("default: {}", "default: {engine: {env: {B: '${B}'}}}") + "public: [A, B]\n")
    assert {group.name: config.config(group).public for group in config.matrix.groups}["bf16--async-on"] == ("A",)
    assert config.config(config.matrix.groups[2]).public == ("A", "B")


def test_the_lint_of_a_group_names_the_lines_of_the_matrix(expand):
    config = expand(HEAD + "matrix:\n  axes:\n    variants.args.speculative-config.method:\n      - eagle3\n      - egle3\n")
    problems = lint.lint(config.config(config.matrix.groups[0]), RULES)
    (line,) = {problem.line for problem in problems if "egle3" in problem.found}
    assert line == 9


AXES = HEAD + "matrix:\n  axes:\n"
TWO = "    engine.args.x: [a, b]\n"
PROBLEMS = [
    ("    engin.args.x: [1]\n", ["7  matrix.axes.engin.args.x: found no section of settings: engin", "did you mean 'engine'?"]),
    (
        "    quantisation: [1]\n",
        ["7  matrix.axes.quantisation: found no section of settings: quantisation", "an axis of several settings has named values"],
    ),
    ("    engine: [1]\n", ["7  matrix.axes.engine: found the section engine without a setting"]),
    ("    placement.x: [1]\n", ["7  matrix.axes.placement.x: found a step below placement, which is itself a setting, expected placement"]),
    ("    engine..x: [1]\n", ["7  matrix.axes.engine..x: found a path with an empty step"]),
    (
        "    variants.ngram-k4.args.x: [1]\n",
        ["7  matrix.axes.variants.ngram-k4.args.x: found a setting of the variant ngram-k4 alone", "variants.args.x"],
    ),
    ("    engine.args.x: []\n", ["7  matrix.axes.engine.args.x: found none, expected at least one"]),
    ("    a: {}\n", ["7  matrix.axes.a: found none, expected at least one"]),
    ("    a: {x--y: {}}\n", ["7  matrix.axes.a.x--y: found this name, expected lower-case letters and digits with single dashes"]),
    ("    a: {x: 1}\n", ["7  matrix.axes.a.x: found 1, expected settings by section"]),
    ("    a: {x: {engin: {}}}\n", ["7  matrix.axes.a.x.engin: found no section of settings", "did you mean 'engine'?"]),
    ("    variant: {x: {}}\n", ["7  matrix.axes.variant: found an axis called variant"]),
    ("    group: {x: {}}\n", ["7  matrix.axes.group: found an axis called group"]),
    (
        "    engine.args.x:\n    - F_p\n    - f-P\n",
        ["9  matrix.axes.engine.args.x[1]: found a second value called f-p", "give the values names"],
    ),
    ("    engine.args.x: ['%']\n", ["7  matrix.axes.engine.args.x[0]: found a value without letters or digits for its name"]),
    ("    a: {x: {engine: {url: 'http://h:1'}}}\n", ["7  matrix.axes.a: found the address of a server that runs already"]),
    (
        "    engine.args.x: [1]\n    a: {x: {engine: {args: {X: 2}}}}\n",
        ["8  matrix.axes.a: found engine.args.x, which the axis x sets too"],
    ),
    (TWO + "  exclude: [{y: a}, {x: c}]\n", ["8  matrix.exclude[0].y: found no axis", "8  matrix.exclude[1].x: found 'c', no value of it"]),
    (
        TWO + "  exclude:\n  - {x: a}\n  - {x: a, variant: ngram-k4}\n",
        ["10  matrix.exclude[1]: found combinations that are left out already"],
    ),
    (TWO + "  exclude:\n  - {x: a}\n  - {x: b}\n", ["8  matrix.exclude: found every combination left out"]),
    (TWO + "engines: {old: {}, new: {venv: v}}\n", ["5  matrix: found `matrix` beside `engines`"]),
    (TWO + f"waivers: [{WAIVER.format('ngram-k3')}]\n", ["8  waivers[0].variant: found 'ngram-k3'", "did you mean 'ngram-k4'?"]),
    (
        TWO + "gates: {acceptance_length: {golden: {file: g, tests: {eagle3-k3--x: T}}}}\n",
        ["8  gates.acceptance_length.golden.tests.eagle3-k3--x: found 'eagle3-k3--x'"],
    ),
    (TWO + "lossy: 1\n", ["8  lossy: found 1"]),
    ("    placement: [auto, never]\n", ['7  placement: found "never"']),
    ("    engine.arg.x: [a]\n", ["7  engine.arg: found an unknown key", "did you mean 'args'?"]),
    ("    engine.env.API_KEY:\n    - word\n", ["8  matrix.axes.engine.env.API_KEY[0]: found a secret that is written out"]),
    ("".join(f"    engine.args.x{i}: [a, b, c, d]\n" for i in range(7)), ["6  matrix.axes: found 32768 combinations", "cover: pairwise"]),
]


@pytest.mark.parametrize("rest, expected", PROBLEMS)
def test_each_problem_names_its_line_and_a_remedy(write, rest, expected):
    text = "\n".join(problems_of(write(AXES + rest)))
    assert [words for words in expected if words not in text] == []


def test_all_problems_of_a_matrix_are_told_at_once(write):
    lines = problems_of(write(AXES + "    engin.args.x: [1, 1]\n    engine: [1]\n  exclude: [{z: 1}]\n"))
    assert [line.split(":")[0] for line in lines] == [
        "7  matrix.axes.engin.args.x",
        "7  matrix.axes.engin.args.x[1]",
        "8  matrix.axes.engine",
        "9  matrix.exclude[0].z",
    ]


def test_a_setting_that_is_wrong_in_many_cells_is_told_once(write):
    (line,) = problems_of(write(AXES + TWO + "    variants.arg.x: [1, 2]\n"))
    assert line.startswith("8  variants.eagle3-k3--a--variants-arg-x-1.arg: found an unknown key")


def test_an_axis_of_servers_that_run_already_is_a_problem_but_for_what_requests_have(write, expand):
    text = EXAMPLE.replace("model: target", "model: target, url: 'http://h:1'")
    assert "one that runs already at engine.url" in "\n".join(problems_of(write(text)))
    assert len(expand(text[: text.index("  axes")] + "  axes: {variants.body.generation: [a, b]}\n").matrix.cells) == 4


def test_a_file_with_a_matrix_is_known_and_is_no_config_of_one_pair(write):
    path = write(EXAMPLE)
    assert (matrix.is_matrix(path), matrix.is_matrix(write(HEAD, "plain.yaml"))) == (True, False)
    with pytest.raises(ConfigError, match=re.escape(f"python -m pytest_specdec matrix {path}")) as caught:
        load.load(path)
    assert caught.value.where == f"{path}:5  matrix"
    with pytest.raises(ConfigError, match="this config has no matrix"):
        matrix.load_matrix(path.with_name("plain.yaml"))


ALL = [
    f"{variant}--{dtype}--async-{way}"
    for dtype in ("bf16", "fp8")
    for way in ("on", "off", "default")
    for variant in ("eagle3-k3", "ngram-k4")
]
EXPRESSIONS = [
    ("async=on", lambda name: name.endswith("async-on")),
    ("not async=on", lambda name: not name.endswith("async-on")),
    ("async=on and not kv-cache-dtype=fp8 or variant=eagle3-k3", lambda name: name.endswith("bf16--async-on") or "eagle3" in name),
    ("async=on and not (kv-cache-dtype=fp8 or variant=eagle3-k3)", lambda name: name == "ngram-k4--bf16--async-on"),
    ("ngram-*--async-o?", lambda name: "ngram" in name and name.endswith("on")),
    ("kv-cache-dtype = FP8", lambda name: "fp8" in name),
    ("kv-cache-dtype=*8", lambda name: "fp8" in name),
    ("group=fp8--async-on and variant=ngram-k4", lambda name: name == "ngram-k4--fp8--async-on"),
    ("not group=fp8--*", lambda name: "fp8" not in name),
    ("not not ngram-k4--fp8--async-on", lambda name: name == "ngram-k4--fp8--async-on"),
]


@pytest.mark.parametrize("expression, holds", EXPRESSIONS)
def test_an_expression_selects_the_cells_for_which_it_holds(expand, expression, holds):
    whole = expand(EXAMPLE).matrix
    selected = select(whole, expression)
    assert [cell.name for cell in selected.cells] == [name for name in ALL if holds(name)]
    assert selected.axes == whole.axes
    assert all(group.cells for group in selected.groups)


SEEDS = HEAD + "matrix: {axes: {engine.args.seed: [-1, 1, null, 0.5], engine.args.m: ['Qwen/Qwen3-8B', x]}}\n"


@pytest.mark.parametrize("expression, groups", [
    ("seed=-1", "seed-minus-1--"), ("seed=1", "seed-1--"), ("seed=null", "seed-none--"), ("seed=0.5", "seed-0-5--"),
    ("seed=minus-1", "seed-minus-1--"), ("m=Qwen/Qwen3-8B", "--qwen-qwen3-8b"), ("m=qwen*", "--qwen-qwen3-8b"),
])  # fmt: skip
def test_a_value_may_be_written_as_the_config_has_it(expand, expression, groups):
    whole = expand(SEEDS).matrix
    assert [group.name for group in select(whole, expression).groups] == [group.name for group in whole.groups if groups in group.name]


def test_an_error_names_the_option_that_has_the_expression(expand):
    with pytest.raises(ConfigError) as caught:
        select(expand(EXAMPLE).matrix, "asinc=on", option="--only")
    assert caught.value.where == "--only"


REFUSED = [
    ("asinc=on", "'asinc', which is no axis", "did you mean 'async'?"),
    ("kv-cache-dtype=fp7", "'fp7', which is no value of kv-cache-dtype", "did you mean 'fp8'?"),
    ("ngram-k4--fp8--async-of", "which is no cell", "did you mean 'ngram-k4--fp8--async-off'?"),
    ("group=fp8--async-of", "'fp8--async-of', which is no group", "did you mean 'fp8--async-off'?"),
    ("async=on and async=off", "async=on and async=off", "ask for less"),
    ("(async=on", "an open parenthesis", "AXIS=VALUE"),
    ("async=on async=off", "'async=off' after a condition", "AXIS=VALUE"),
    ("async=on)", "')' after a condition", "AXIS=VALUE"),
    ("async=on and", "its end", "AXIS=VALUE"),
    ("or async=on", "'or'", "AXIS=VALUE"),
    ("kv-cache-dtype=-*", "'-*', which is no value of kv-cache-dtype", "lists axes and cells"),
    ("kv-cache-dtype={fp8", "'{fp8', which is no value of kv-cache-dtype", "fp8"),
    ("async=", "'', which is no value of async", "lists axes and cells"),
    ("", "its end", "AXIS=VALUE"),
]


@pytest.mark.parametrize("expression, actual, remedy", REFUSED)
def test_an_expression_that_selects_nothing_or_cannot_be_read_is_an_error_with_the_nearest_name(expand, expression, actual, remedy):
    with pytest.raises(ConfigError) as caught:
        select(expand(EXAMPLE).matrix, expression)
    assert actual in caught.value.found
    assert remedy in caught.value.remedy
    assert caught.value.where == "--specdec-only"


def test_a_group_of_many_long_values_has_a_name_that_a_folder_can_have(expand):
    """Six values of 50 characters come to more than the 255 bytes of a file name; such names differ in their last digits."""
    axes = "".join(f"    engine.env.N{index}: [{'a' * 50}, {'b' * 50}]\n" for index in range(6))
    made = expand(f"{HEAD}matrix:\n  axes:\n{axes}")
    names = [group.name for group in made.matrix.groups]
    assert max(map(len, names)) == 120
    assert len(set(names)) == 64
    assert all(re.fullmatch("[a-z0-9][a-z0-9-]*", name) for name in names)

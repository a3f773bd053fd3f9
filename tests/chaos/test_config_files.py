"""Faults in config files: bombs, depths and secrets end in a ConfigError with its line."""

from __future__ import annotations

import pytest

from pytest_specdec.config import load
from pytest_specdec.errors import ConfigError

GOOD = "engine: {kind: reference, model: target}\nvariants: {v: {args: {speculative-config: {method: ngram, num_speculative_tokens: 3}}}}\n"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
SECRET = "sesame-open-now"


def loaded(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    try:
        load.load(path)
    except ConfigError as error:
        told = str(error)
    else:
        return "loaded"
    assert SECRET not in told
    return f"ConfigError at line {told.partition('c.yaml:')[2].split()[0]}"


@pytest.mark.chaos("a bomb of YAML aliases, ten times as many a level", expected="ConfigError at line 1", quick=True)
def test_aliases_do_not_multiply(tmp_path, seen):
    seen(loaded(tmp_path, BOMB + GOOD))


@pytest.mark.parametrize("deep", ["[" * 3000 + "]" * 3000, "[" * 100 + "]" * 100], ids=["endless", "deep"])
@pytest.mark.chaos("YAML nested without end", expected="ConfigError at line 1", quick=True)
def test_depths_have_an_end(tmp_path, deep, seen):
    seen(loaded(tmp_path, f"a: {deep}\n"))


@pytest.mark.parametrize(
    "line",
    [
        f"  api_key: {SECRET}",
        f"  args: {{api-key: {SECRET}}}",
        f'  args: \'{{"api-key": "{SECRET}"}}\'',
        f"  env: {{HF_TOKEN: {SECRET}}}",
        f"  args: {{header: 'Authorization: Bearer {SECRET}'}}",
        f"  env: {{NOTE: hf_{SECRET.replace('-', '')}aaaaaaaaaa}}",
    ],
    ids=["api_key", "args", "args as JSON", "env", "header", "looks like one"],
)
@pytest.mark.chaos("a secret written out in a config", expected="ConfigError at line 4", quick=True)
def test_a_secret_that_is_written_out_is_refused(tmp_path, line, seen):
    text = "engine:\n  kind: reference\n  model: target\n" + line + "\nvariants: {v: {}}\n"
    seen(loaded(tmp_path, text))


@pytest.mark.chaos("arguments that only sound like secrets", expected="loaded", quick=True)
def test_what_only_sounds_like_a_secret_is_fine(tmp_path, seen):
    args = "{eos_token: </s>, max-num-batched-tokens: 2048, speculative-token-tree: '[(0,)]', ssl-keyfile: k.pem, tokenizer: t}"
    seen(loaded(tmp_path, f"engine:\n  kind: reference\n  model: target\n  args: {args}\n  api_key: ${{KEY}}\nvariants: {{v: {{}}}}\n"))

"""Secrets: values that reach no artifact."""

from __future__ import annotations

from pytest_specdec.files.secrets import Secrets


def test_values_of_variables_named_like_secrets_are_struck_out():
    secrets = Secrets.of({"HF_TOKEN": "hf_abcdef", "API_KEY": "short", "HOME": "/root"}, also=("key", None, "hf_abcdef-longer"))
    assert secrets.mask("hf_abcdef-longer hf_abcdef short /root key") == "*** *** short /root ***"
    assert "hf_" not in repr(secrets)

"""Variables: what a config took from the environment, kept as salted digests, so that a resumed run can tell that one has changed."""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from pytest_specdec.config import expand
from pytest_specdec.files import yaml
from pytest_specdec.model.environment import Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["changed", "of"]

_SALT_BYTES = 16
_COST = 2**14
"""Of scrypt: a short secret cannot be guessed from its digest in passing."""


def of(config: str, environ: Mapping[str, str]) -> Variables:
    """Return the digests of the variables that the text of a config names."""
    salt = secrets.token_hex(_SALT_BYTES)
    return Variables(salt=salt, digests=_digests(config, environ, salt))


def changed(then: Variables, config: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables whose value is another than ``then``, or that are set or unset since."""
    now = _digests(config, environ, then.salt)
    return tuple(name for name in dict.fromkeys([*then.digests, *now]) if then.digests.get(name) != now.get(name))


def _digests(config: str, environ: Mapping[str, str], salt: str) -> dict[str, str]:
    named = expand.names(yaml.load(config, "config.yaml").data)
    return {name: _digest(environ[name], salt) for name in named if name in environ}


def _digest(value: str, salt: str) -> str:
    text = value.encode(errors="surrogateescape")
    return hashlib.scrypt(text, salt=bytes.fromhex(salt), n=_COST, r=8, p=1, dklen=_SALT_BYTES).hex()

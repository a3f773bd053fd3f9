#!/usr/bin/env bash
# SGLang's own request models and argument fields, without torch or a GPU: the wheel unpacked in the cache, beside a venv of what they import.
# usage: install.sh LINK        e.g. install.sh .venv-sglang-protocol
set -euo pipefail
link=$1
sglang=0.5.23 # its wheel is for python 3.11
python=${PYTHON311:-python3.11}
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
venv=$cache/sglang-protocol-$sglang
if [ ! -e "$venv/.installed" ]; then
  command -v "$python" >/dev/null || python=python3
  rm -rf "$venv.part" && mkdir -p "$cache"
  "$python" -m venv "$venv.part"
  pip() { "$venv.part/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
  pip install msgspec openai==2.8.0 pydantic
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  pip download --no-deps --dest "$wheels" --only-binary=:all: --python-version 3.11 "sglang==$sglang"
  "$venv.part/bin/python" -m zipfile --extract "$wheels"/*.whl "$venv.part/wheel"
  rm -rf "$venv" && mv "$venv.part" "$venv"
  touch "$venv/.installed"
fi
ln -sfn "$venv" "$link"
echo "sglang $sglang: request models and arguments"

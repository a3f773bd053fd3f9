#!/usr/bin/env bash
# llama-server, built from the sources in llama-cpp-python's source archive and cached by version, and the project's checkpoints as GGUF files.
# usage: install.sh LINK PYTHON        e.g. install.sh .llama-server .venv/bin/python (which has numpy, safetensors and pyyaml)
set -euo pipefail
link=$1
python=$2
version=0.3.36 # of the archive: llama.cpp 0.5.0-dev, commit 0c1e570
here=$(dirname "$0")
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
folder=$cache/llama-cpp-$version
# Little optimisation: the compiler takes two thirds of the time, and a model of 4 M parameters does not notice.
BUILD_TYPE=None CFLAGS="-O1 -DNDEBUG" CXXFLAGS="-O1 -DNDEBUG" bash "$here/../../../pytest_specdec/engines/environments/llama_cpp.sh" "$version" "$folder"
# The checkpoints may have changed since; converting them takes a second. The files are put in place by rename: a server that serves the old
# ones has them mapped into memory, and dies of SIGBUS where they are written anew.
converted=$(mktemp -d "$folder/.converted.XXXXXX")
trap 'rm -rf "$converted"' EXIT
"$python" "$here/convert.py" "$folder/gguf-py" "$here/../../../specdec_reference/checkpoints" "$converted"
chmod a+r "$converted"/*.gguf
mv -f "$converted"/*.gguf "$folder"
ln -sfn "$folder" "$link"
"$link/llama-server" --version 2>&1 | head -1

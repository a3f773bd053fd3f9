#!/usr/bin/env bash
# llama-server, built from the sources in llama-cpp-python's source archive and cached by version, and the project's checkpoints as GGUF files.
# usage: install.sh LINK PYTHON        e.g. install.sh .llama-server .venv/bin/python (which has numpy, safetensors and pyyaml)
# Needs cmake, ninja and a C++ compiler. The build takes some five minutes on two cores; nothing is downloaded but the archive.
set -euo pipefail
link=$1
python=$2
version=0.3.36 # of the archive: llama.cpp 0.5.0-dev, commit 0c1e570
here=$(dirname "$0")
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pytest-specdec}
folder=$cache/llama-cpp-$version
if [ ! -e "$folder/.installed" ]; then
  for tool in cmake ninja c++; do
    command -v "$tool" >/dev/null || { echo "llama-server is built with $tool, which is not here: install it" >&2; exit 1; }
  done
  sources=$(mktemp -d)
  trap 'rm -rf "$sources"' EXIT
  "$python" -m pip --quiet --disable-pip-version-check download --no-binary :all: --no-deps --dest "$sources" "llama-cpp-python==$version"
  tar xzf "$sources/llama_cpp_python-$version.tar.gz" -C "$sources"
  tree=$sources/llama_cpp_python-$version/vendor/llama.cpp
  cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF >/dev/null
  cmake --build "$tree/build" --target llama-server --parallel "$(nproc)" >/dev/null
  rm -rf "$folder" && mkdir -p "$folder"
  cp "$tree/build/bin/llama-server" "$folder"
  cp -r "$tree/gguf-py" "$folder"
  touch "$folder/.installed"
fi
# The checkpoints may have changed since; converting them takes a second. The files are put in place by rename: a server that serves the old
# ones has them mapped into memory, and dies of SIGBUS where they are written anew.
converted=$(mktemp -d "$folder/.converted.XXXXXX")
trap 'rm -rf "${sources:-}" "$converted"' EXIT
"$python" "$here/convert.py" "$folder/gguf-py" "$here/../../../specdec_reference/checkpoints" "$converted"
chmod a+r "$converted"/*.gguf
mv -f "$converted"/*.gguf "$folder"
ln -sfn "$folder" "$link"
"$link/llama-server" --version 2>&1 | head -1

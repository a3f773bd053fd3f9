#!/usr/bin/env bash
# llama-server, built from the sources in the archive of a release of llama-cpp-python, with their gguf-py beside it.
# usage: bash llama_cpp.sh VERSION FOLDER        the version is the archive's: 0.3.36 holds llama.cpp 0.5.0-dev
# Needs cmake, ninja and a C++ compiler. The build takes some five minutes on two cores; nothing is downloaded but the archive.
# BUILD_TYPE is cmake's, Release unless set; with another one, CFLAGS and CXXFLAGS say how the compiler optimises.
set -euo pipefail
. "$(dirname "$0")/folder.sh"
begin "$@"
for tool in cmake ninja c++; do
  command -v "$tool" >/dev/null || fail "llama-server is built with $tool, which is not here: install it"
done
sources=$folder/.sources
"$python" -m pip -qq --disable-pip-version-check download --no-binary :all: --no-deps --dest "$sources" "llama-cpp-python==$version"
tar xzf "$sources"/llama_cpp_python-*.tar.gz -C "$sources"
tree=$(echo "$sources"/llama_cpp_python-*/vendor/llama.cpp)
# Earlier releases need libcurl unless LLAMA_CURL is off; later ones ignore the setting.
cmake -S "$tree" -B "$tree/build" -G Ninja -DCMAKE_BUILD_TYPE="${BUILD_TYPE:-Release}" -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF \
  -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF >/dev/null
cmake --build "$tree/build" --target llama-server --parallel "$(nproc)" >/dev/null
cp "$tree/build/bin/llama-server" "$folder"
cp -r "$tree/gguf-py" "$folder"
rm -r "$sources"
finish

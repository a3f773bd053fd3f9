# The folder of one release of an engine, for the scripts beside this file, which source it: `begin` before anything is installed, `finish` at
# the end. An environment that is complete is left as it is, one that was cut off is made anew, and any other folder is never touched.

python=${PYTHON311:-python3.11}
command -v "$python" >/dev/null || python=python3

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# usage: begin VERSION FOLDER; sets version and folder, an absolute path
begin() {
  [ $# -eq 2 ] || fail "expected a release and a folder, as in: $(basename "$0") 1.2.3 environments/1.2.3"
  version=$1
  case $version in "" | *[!0-9A-Za-z.+_-]*) fail "'$version' is no release: expected one as the package index lists it, such as 1.2.3" ;; esac
  mkdir -p "$(dirname "$2")"
  folder=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
  if [ -e "$folder/.installed" ]; then
    installed=$(cat "$folder/.installed") # an empty one is older than this file
    [ -z "$installed" ] || [ "$installed" = "$version" ] || fail "$folder holds release $installed, not $version: name another folder, or remove it"
    exit 0
  fi
  if [ -e "$folder" ] && [ ! -e "$folder/.installing" ] && [ -n "$(ls -A "$folder")" ]; then
    fail "$folder holds something else: name a folder that is empty or not there"
  fi
  rm -rf "$folder"
  mkdir "$folder"
  touch "$folder/.installing"
}

finish() {
  echo "$version" >"$folder/.installed"
  rm "$folder/.installing"
}

# A venv in the folder, and a recent pip in it.
make_venv() {
  "$python" -m venv "$folder"
  pip install --upgrade pip
}

pip() {
  "$folder/bin/python" -m pip -qq --disable-pip-version-check "$@" # errors alone
}

# The CPU build of torch, which is for one version of python. It is a local version: no CUDA build can satisfy it.
torch=2.13.0+cpu
check_python() {
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "torch $torch is for python 3.11, found $("$python" --version): set PYTHON311"
}

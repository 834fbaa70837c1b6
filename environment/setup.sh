#!/bin/sh
# Installs a lock file by pip: environment/setup.sh .venv environment/requirements-dev.lock
#
#   PYTHON=python3.12    the Python of the environment, a name or a path; else the first that fits. TensorFlow
#                        runs on 3.11, 3.12 and 3.13.
set -eu
fail() { echo "setup: $*" >&2; exit 1; }
folder=${1-} lock=${2-} python=${1-}/bin/python
[ "$folder" ] && [ -f "$lock" ] || fail "'$folder' '$lock': give a folder for the environment and a lock file"

# PYTHON MODULES: prints its version; fails if it does not fit, or lacks one of the modules.
version() { "$1" -I -c "import sys, $2; print(v := sys.version_info[:2]); assert (3, 11) <= v < (3, 14)" 2>/dev/null; }

# Debian splits ensurepip, by which venv installs pip, from Python.
wanted=''
if [ "${PYTHON:-}" ]; then
  wanted=$(version "$PYTHON" venv,ensurepip) ||
    fail "PYTHON=$PYTHON is not a Python of 3.11 to 3.13 with the modules venv and ensurepip; name another, or leave PYTHON out"
fi
present=$(version "$python" sys && "$python" -m pip --version >/dev/null 2>&1) || present=''
if [ -z "$present" ] || [ "${wanted:-$present}" != "$present" ]; then
  if [ -z "$wanted" ]; then
    for PYTHON in python3 python3.13 python3.12 python3.11 ''; do
      if version "$PYTHON" venv,ensurepip >/dev/null; then break; fi
    done
    [ "$PYTHON" ] || fail "there is no Python of 3.11 to 3.13 with the modules venv and ensurepip: apt-get install python3 python3-venv; or pip install uv, uv python install 3.13, and name it with PYTHON=\"\$(uv python find 3.13)\""
  fi
  # venv empties the folder.
  if [ ! -f "$folder/pyvenv.cfg" ] && { [ -e "$folder" ] || [ -L "$folder" ]; }; then
    [ -d "$folder" ] && contents=$(ls -A "$folder") && [ -z "$contents" ] ||
      fail "$folder is not an environment, and it is not empty: name another folder, or remove it yourself"
  fi
  "$PYTHON" -m venv --clear "$folder"
fi

echo "setup: installing $lock into $folder, packages: $(grep -c '^[^ ]*==' "$lock"); the first time takes minutes"
# Builds of one thing lie in the same folders, as tensorflow and tensorflow-cpu do, and jax takes every plugin that it finds.
rivals=''
for installed in "$folder"/lib/python3*/site-packages/*.dist-info; do
  name=${installed##*/}
  name=$(echo "${name%%-*}" | tr _ -)
  case $name in
    tensorflow|tensorflow-cpu|libtpu|jax-cuda*) ;;
    nvidia-*) grep -q '^nvidia-cudnn' "$lock" || continue ;; # else they serve something of yours, or nothing
    *) continue ;;
  esac
  grep -q "^$name==" "$lock" || rivals="$rivals $name"
done
if [ "$rivals" ]; then
  echo "setup: removing what is not in $lock:$rivals"
  # shellcheck disable=SC2086 # a list of words
  "$python" -m pip uninstall --quiet --yes $rivals
fi
quiet=--quiet
if [ -t 2 ]; then quiet=''; fi # a terminal shows progress; a log would get a line for every package
# --no-deps: the lock names every package.
"$python" -m pip install $quiet --disable-pip-version-check --no-deps --no-compile --require-hashes -r "$lock"
# pip would compile in one process, and the packages' own tests too, a quarter of all. Eight processes, because a
# machine may have more cores than a container may use. They need locks, which /dev/shm may refuse: then one compiles.
# Files that fail are for other Pythons, and never imported.
compile() { "$python" -m compileall -qq "$@" -x '/site-packages/.*/tests/' "$folder"/lib; }
compile -j 8 2>/dev/null || compile || true

#!/bin/sh
# Installs a lock file: environment/setup.sh .venv environment/requirements-dev.lock
#
#   PYTHON=python3.12    the Python of the environment, a name or a path; else the first that fits. TensorFlow
#                        runs on 3.11, 3.12 and 3.13. A machine with other ones gets one of these by uv.
#
# pip's settings hold for all of it (environment/uv.py), and so do those of uv.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "setup: $*" >&2; exit 1; }
folder=${1-} lock=${2-}
[ "$folder" ] && [ -f "$lock" ] || fail "'$folder' '$lock': give a folder for the environment and a lock file"

# Debian splits the module venv, with ensurepip, from Python.
is_python() { "$1" -I -c "import sys; $2; sys.exit(not ($3 <= sys.version_info))" 2>/dev/null; }
is_version() { is_python "$1" 'assert sys.version_info < (3, 14)' '(3, 11)'; }
fits() { is_version "$1" && is_python "$1" 'import venv, ensurepip' '(3, 11)'; }
version() { "$1" -I -c 'import sys; print(sys.version_info[:2])' 2>/dev/null; }

found='' without_venv=''
for name in "${PYTHON:-python3}" ${PYTHON:+''} python3.13 python3.12 python3.11; do
  if [ -z "$name" ]; then break; fi
  if fits "$name"; then found=$name; break; fi
  if is_version "$name"; then without_venv=${without_venv:-$name}; fi
done
if [ "${PYTHON:-}" ] && [ -z "$found" ]; then
  fail "PYTHON=$PYTHON is not a Python of 3.11 to 3.13 with the modules venv and ensurepip; name another, or leave PYTHON out"
fi

is_whole() { is_version "$1/bin/python" && "$1/bin/python" -m pip --version >/dev/null 2>&1; }
is_asked_for() { [ -z "${PYTHON:-}" ] || [ "$(version "$1/bin/python")" = "$(version "$PYTHON")" ]; }

get_python() { # sets found: one that uv knows, such as pyenv's, else one that uv fetches
  beginning=$(mktemp -d)
  trap 'rm -rf "$beginning"' EXIT
  uv=''
  for name in python3 python3.14 python3.10 python3.9 python3.8; do
    if is_python "$name" 'import venv, ensurepip' '(3, 8)' && "$name" -m venv "$beginning/venv" >/dev/null; then
      uv="$beginning/venv/bin/python $here/uv.py"
      break
    fi
  done
  if [ -z "$uv" ] && command -v uv >/dev/null; then uv=uv; fi
  if [ -z "$uv" ]; then
    if [ "$without_venv" ]; then
      fail "$without_venv has no modules venv and ensurepip: apt-get install python3-venv, or name another Python of 3.11 to 3.13 with PYTHON=..."
    fi
    fail "there is no Python of 3.11 to 3.13, and no python3 with the modules venv and ensurepip to fetch one: install one of them (apt-get install python3-venv, dnf install python3), or uv, or name a Python with PYTHON=..."
  fi
  found=$($uv python find --no-project --system '>=3.11,<3.14' 2>/dev/null) || true
  if [ -z "$found" ] || ! fits "$found"; then
    echo "setup: no Python of 3.11 to 3.13 here: uv fetches 3.13" >&2
    # --no-bin: nothing is put on the PATH.
    found=$($uv python install --quiet --no-bin 3.13 && $uv python find --no-project --managed-python 3.13) ||
      fail "there is no Python of 3.11 to 3.13, and uv got none (above): install one, such as python3.13 with its module venv, name one with PYTHON=..., or a mirror with UV_PYTHON_INSTALL_MIRROR=..."
  fi
}

if ! { is_whole "$folder" && is_asked_for "$folder"; }; then
  # venv empties the folder.
  if [ ! -f "$folder/pyvenv.cfg" ] && { [ -e "$folder" ] || [ -L "$folder" ]; }; then
    [ -d "$folder" ] && contents=$(ls -A "$folder") && [ -z "$contents" ] ||
      fail "$folder is not an environment, and it is not empty: name another folder, or remove it yourself"
  fi
  [ "$found" ] || get_python
  "$found" -m venv --clear "$folder"
fi
python=$folder/bin/python
had_uv=$([ ! -x "$folder/bin/uv" ] || echo yes)
echo "setup: installing $lock into $folder, packages: $(grep -c '^[^ ]*==' "$lock"); the first time takes minutes"
quiet=--quiet
if [ -t 2 ]; then quiet=''; fi # a terminal shows progress; a log would get a line for every package
# Builds of one thing lie in the same folders, as tensorflow and tensorflow-cpu do, and jax takes every plugin that it finds.
rivals=''
for installed in "$folder"/lib/python3*/site-packages/*.dist-info; do
  name=${installed##*/}
  name=$(echo "${name%%-*}" | tr _ -)
  case $name in
    tensorflow|tensorflow-cpu|libtpu|jax-cuda*|jax-rocm*) ;;
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
# --no-deps: the lock names every package.
if "$python" "$here/uv.py" --version >/dev/null 2>&1; then
  "$python" "$here/uv.py" pip install $quiet --python "$python" --no-deps --require-hashes --compile-bytecode -r "$lock"
else # a mirror of these packages alone may have no uv
  "$python" -m pip install $quiet --disable-pip-version-check --no-deps --require-hashes -r "$lock"
fi
if [ -z "$had_uv" ] && [ -x "$folder/bin/uv" ] && ! grep -q '^uv==' "$lock"; then
  "$python" -m pip uninstall --quiet --yes uv
fi

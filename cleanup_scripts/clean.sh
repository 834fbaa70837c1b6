#!/usr/bin/env bash
# Clean-up stage .2 of one file: clean.sh INPUT OUTPUT
set -euo pipefail
unset CDPATH
if [ $# -ne 2 ]; then
  echo "usage: clean.sh INPUT OUTPUT" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "$("$here/interpreter.sh")" "$here/clean_up.py" clean.py "$1" "$2"

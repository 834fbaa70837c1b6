#!/usr/bin/env bash
# Traces a command and everything that it starts, containers included:
#
#   tracing/trace.sh -- ./start_training.sh ...
#   tracing/trace.sh -- make demo
#   tracing/trace.sh --help
#
# tracing/README.md says what is recorded and how to read it.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
command -v "$python" > /dev/null || python=python3
packages='jinja2 matplotlib pandas perfetto psutil pyarrow pynvml'
# shellcheck disable=SC2086
if ! "$python" - $packages <<'EOF'
import importlib.util, sys
sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))
EOF
then
  echo "trace: $python lacks one of the packages $packages; run make setup, or pip install $here/tracing" >&2
  exit 1
fi
# The command keeps the environment that it was given: no PYTHONPATH for our own sake.
exec "$python" -c 'import sys; sys.path[0] = sys.argv.pop(1); from tracing.__main__ import main; main()' "$here" "$@"

#!/usr/bin/env bash
# Fetches and checks the published files: download_and_uncompress.sh --help
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "$("$here/interpreter.sh")" "$here/clean_up.py" download_and_uncompress.sh "$@"

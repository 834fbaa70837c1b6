#!/usr/bin/env bash
# Extracts the text of a Wikipedia dump: extract_wiki.sh --help
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "$("$here/interpreter.sh")" "$here/clean_up.py" extract_wiki.sh "$@"

#!/usr/bin/env bash
# Clean-up stage .2 of one file: clean.sh INPUT OUTPUT
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/clean.py" "$1" "$2"

"""Starts the script of this name one folder up; the reference keeps it here."""

import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
runpy.run_path(str(ROOT / "create_pretraining_data.py"), run_name="__main__")

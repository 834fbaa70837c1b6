"""The old name of python -m tracing.export --to=dlio, which takes the same arguments."""

import sys

from tracing import export

if __name__ == "__main__":
    export.main(["--to=dlio", *sys.argv[1:]])

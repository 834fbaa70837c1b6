"""Prints the flags that a root script defines, with their defaults, as JSON."""

import json
import runpy
import sys

script = sys.argv.pop()
own = runpy.run_path(script, run_name=script)["FLAGS"].flags_by_module_dict()[script]
print(json.dumps({flag.name: flag.default for flag in own}))

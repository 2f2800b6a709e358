"""Runs the command lines of a JSON file, each a script and its arguments, as if each had been started by itself."""

import json
import runpy
import sys
from pathlib import Path

for line in json.loads(Path(sys.argv[1]).read_text()):
    sys.argv = line
    runpy.run_path(line[0], run_name="__main__")

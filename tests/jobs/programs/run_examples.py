"""Scripts one after the other in one job, as if each had been started by itself.

run_examples.py JOBS.json: a list of command lines, each a script and its arguments.
"""

import json
import runpy
import sys
from pathlib import Path

for line in json.loads(Path(sys.argv[1]).read_text()):
    sys.argv = line
    runpy.run_path(line[0], run_name="__main__")

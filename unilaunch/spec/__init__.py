"""What was asked for: the specs, and the ways in: command line, variables, files.

Begin with `run_spec.py` and `launch_spec.py`, then read `reading.py`. `options.py` parses a command line:
`habits.py` knows what is typed for other launchers. `task.py` is a checked spec with its target, which `launch`
passes to the ranks.
"""

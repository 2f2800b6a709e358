"""What a training on all nodes needs beside its network: loss and metrics of a task, and steps over the ranks.

Begin with `objective.py` (what is trained), then read `steps.py`; Adam is `models/unilaunch_graph/optimizer.py`.
"""

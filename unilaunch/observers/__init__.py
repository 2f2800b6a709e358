"""Who is told the numbers of a job while it runs: one module each, named by the entry points "unilaunch.observers".

Begin with `tensorboard.py`. `points.py` reads the numbers of a model's steps. Prometheus is not among them: it asks,
and the monitor answers.
"""

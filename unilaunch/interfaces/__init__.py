"""What plug-ins implement and use: backends, models, commands, and the values that they get.

Begin with `backend.py` and `model.py`. `plugins.py` finds plug-ins by their entry points. The base classes of
launchers and of job files stand beside what implements them.
"""

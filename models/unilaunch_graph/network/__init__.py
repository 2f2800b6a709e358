"""What `ug.torch` and `ug.mindspore` share; it imports no framework.

Begin with `part.py` (the fields of a part), then read `layers.py` (the layers without a framework's calls).
"""

"""`unilaunch report`: one HTML page that shows a run, or two.

Begin with `command.py`. `reading.py` reads the files of a run, and `page.py` writes the page.
"""

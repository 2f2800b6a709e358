"""This version of unilaunch."""

__version__ = "0.3.0"

"""This version of unilaunch."""

__version__ = "0.1.0"

"""This version of unilaunch."""

__version__ = "0.2.0"

"""MindSpore for unilaunch."""

"""Readers of a run: its logs, its report, its status and stacks, and how this machine would start one."""

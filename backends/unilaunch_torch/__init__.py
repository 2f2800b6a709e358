"""PyTorch for unilaunch."""

"""What this machine has, and allows: devices, processors, cgroups, open files, addresses, connections, variables."""

"""What this machine has, and allows: devices, processors, cgroups, open files, addresses, variables that stay here."""

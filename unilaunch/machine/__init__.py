"""What this machine has, and allows: devices, processors, cgroups, open files, and variables that stay here."""

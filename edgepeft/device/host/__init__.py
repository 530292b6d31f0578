"""What this machine is: processor, cores, control groups, sensors, energy, wheels that do not work on it."""

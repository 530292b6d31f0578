"""Device profiles: what a device has, what this host has, and limits that make one look like the other."""

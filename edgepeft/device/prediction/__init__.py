"""How long a device takes, from its profile alone."""

"""Device profiles: what is known of a device, each figure with its source."""

"""PE methods: one file each, found by discovery."""

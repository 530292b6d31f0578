"""Other libraries' checkpoints: one importer each, found by discovery; none of those libraries is needed."""

"""The format of a bundle and of a delta: files, manifest, cards, versions."""

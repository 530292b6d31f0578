"""From trained deltas to a bundle: graphs, check files, manifest."""

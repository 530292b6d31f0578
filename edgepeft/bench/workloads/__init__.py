"""One file per workload: ``prepare(job)``; imported in its worker only."""

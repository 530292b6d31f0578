"""One file per workload: ``ENGINE``, ``WORKLOAD``, ``prepare(job)``; imported in its worker only."""

"""One file per workload: ``ENGINE``, ``WORKLOAD``, ``prepare(job) -> step``; imported in its worker only."""

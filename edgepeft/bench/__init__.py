"""Throughput under a device's limits: a process per workload, interleaved rounds, paired ratios."""

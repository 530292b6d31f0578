"""A device's cores, memory and processor time, in force on a child process (SPARTAN, arXiv:2211.16634, appendix F)."""

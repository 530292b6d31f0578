"""Vector-Jacobian rules, one file for operators of a kind; each file's ``RULES`` says whose."""

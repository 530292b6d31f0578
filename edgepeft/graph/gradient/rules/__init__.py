"""Vector-Jacobian rules, one file for operators of a kind."""

"""What changes or judges a bundle: install, verify, merge, fit, cost, audit."""

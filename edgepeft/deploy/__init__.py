"""What changes or checks a bundle: install, verify, merge, sign, cost."""

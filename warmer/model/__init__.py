"""Frozen values, no I/O: what the rest of the package talks about."""

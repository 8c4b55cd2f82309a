"""Asking an HTTP origin for one value: the only folder that speaks HTTP to it."""

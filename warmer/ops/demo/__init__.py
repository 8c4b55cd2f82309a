"""`warmer demo`: the whole house in one command, on this machine only."""

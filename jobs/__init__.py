"""The arq application: thin entry points, and the process they run in."""

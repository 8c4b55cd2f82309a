"""`warmer serve`: the door that producers, purge callers and deploy pipelines knock at."""

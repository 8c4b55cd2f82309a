"""Pure decisions: values, now and a random source in, a decision out. No I/O, no clock."""

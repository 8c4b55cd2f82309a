"""The Redis protocol; see PROTOCOL.md beside this file. Only this folder imports redis."""

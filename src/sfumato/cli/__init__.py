"""The command line, one file for each command or group; it may import everything, and nothing imports it."""

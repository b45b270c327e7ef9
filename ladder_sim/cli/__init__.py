"""The command line: one file per command. The top layer; nothing imports it."""

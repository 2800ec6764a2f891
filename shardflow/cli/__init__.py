"""The command line: one file per command. Commands parse arguments, call the library and print; they have no logic."""

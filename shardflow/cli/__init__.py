"""The command line. Commands parse arguments, call the library and print; they have no logic."""

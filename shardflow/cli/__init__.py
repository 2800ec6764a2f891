"""The command line: one file per command. Commands parse, call and print; they hold no logic."""

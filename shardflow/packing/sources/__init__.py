"""Sources: inputs for packing, of every kind, listed in one form; see `source`."""

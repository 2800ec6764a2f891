"""Sources: everything that can be packed, listed in one form, see `source`."""

"""Dataset: open, read, verify, copy and compare datasets, and make virtual ones over the tars of others."""

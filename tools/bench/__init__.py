"""One harness for all benchmarks: see `__main__.py`."""

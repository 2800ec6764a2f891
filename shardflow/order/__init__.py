"""Order: pure functions from (seed, epoch, position) to a sample. No I/O, only numpy."""

"""Order: which sample comes when, as pure functions of (seed, epoch, position).

Numpy alone: nothing here reads a file, a clock or a generator.
"""

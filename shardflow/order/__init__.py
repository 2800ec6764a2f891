"""Order: pure functions from (seed, epoch, position) to the sample that comes there.

They need only numpy, and read no file, clock or random generator.
"""

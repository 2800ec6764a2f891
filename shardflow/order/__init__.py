"""Order: pure functions from (seed, epoch, position) to the sample that comes there.

They need numpy alone, and read no file, no clock and no random generator.
"""

"""Interop: the small files by which other loaders read our shards."""

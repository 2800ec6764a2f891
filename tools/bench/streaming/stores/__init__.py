"""Clients of the store, a file each: `open_store(bucket, variant)` returns what fetches blobs.

It is called with the blobs, each with key, size and SHA-256, and a folder; it yields each one's file once it is whole.
"""

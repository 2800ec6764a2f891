"""Clients of S3, a file each: `open_client(bucket, variant)` returns a function that fetches blobs.

It is called with the blobs, each with key, size and SHA-256, and a folder, and yields the file of each when complete.
"""

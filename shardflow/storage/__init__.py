"""Storage: where the bytes of a dataset lie: local directories, S3, any fsspec URL; the cache before them.

The only room that knows fsspec, and the only one that knows which kind of storage it has.
"""

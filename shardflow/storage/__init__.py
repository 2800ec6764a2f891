"""Storage: the places where datasets lie (directories, S3, any URL that fsspec serves), and the cache of remote shards.

Only this package imports fsspec, and only this package knows which kind a storage is.
"""

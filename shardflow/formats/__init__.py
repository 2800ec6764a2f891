"""Formats: what the bytes of a dataset mean: tars, indexes, manifests, receipts, labels, image types.

Pure functions of bytes: nothing here opens a file.
"""

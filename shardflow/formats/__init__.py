"""Formats: the meaning of the bytes of a dataset: tars, indexes, manifests, receipts, labels, image types.

Everything here is a pure function of bytes and opens no file.
"""

"""The S3 server, for the tests of this folder that pack into a bucket."""

from __future__ import annotations

from s3.fixtures import server

__all__ = ["server"]

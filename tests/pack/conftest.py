"""What the tests of this folder share: the S3 server, for those that pack into a bucket, and who decodes JPEGs."""

from __future__ import annotations

from pack.kernel import either_decoder
from s3.fixtures import server

__all__ = ["either_decoder", "server"]

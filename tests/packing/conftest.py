"""What the tests of this folder share: the S3 server, for those that pack into a bucket, and who decodes JPEGs."""

from __future__ import annotations

from tests.helpers.kernel import either_decoder
from tests.helpers.s3_fixtures import server

__all__ = ["either_decoder", "server"]

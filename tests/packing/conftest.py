"""Fixtures of this folder: the S3 server, and the two decoders of JPEGs."""

from __future__ import annotations

from tests.helpers.kernel import either_decoder
from tests.helpers.s3_fixtures import server

__all__ = ["either_decoder", "server"]

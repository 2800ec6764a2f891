"""The server and the proxy, for the tests of this folder."""

from __future__ import annotations

from tests.helpers.s3_fixtures import prefix, proxy, server

__all__ = ["prefix", "proxy", "server"]

"""The server and the proxy, for the tests of this folder."""

from __future__ import annotations

from tests.helpers.s3_fixtures import prefix, proxy, server
from tests.helpers.store_fixtures import azure, gcs, the_hub, web

__all__ = ["azure", "gcs", "prefix", "proxy", "server", "the_hub", "web"]

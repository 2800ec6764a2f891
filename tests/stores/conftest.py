"""The servers, for the tests of this folder."""

from __future__ import annotations

from tests.helpers.s3_fixtures import prefix
from tests.helpers.store_fixtures import azure, gcs, the_hub, web

__all__ = ["azure", "gcs", "prefix", "the_hub", "web"]

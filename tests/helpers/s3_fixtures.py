"""Fixtures for tests against an S3 server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.helpers import shared_servers
from tests.helpers.s3_proxy import Proxy, proxying
from tests.helpers.s3_server import Server


@pytest.fixture(scope="session")
def server() -> Server:
    """The S3 server, one for the whole run."""
    return Server(shared_servers.endpoint("s3"))


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy before the server, without faults as yet."""
    with proxying(server.endpoint) as one:
        yield one


@pytest.fixture
def prefix() -> str:
    """A prefix in the bucket that no other test has."""
    return uuid.uuid4().hex

"""Fixtures for tests against stores other than S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers import azure_server, gcs_server, shared_servers
from tests.helpers.store import Store
from tests.helpers.web_server import Folder, hub, serving


@pytest.fixture(scope="session")
def gcs() -> Iterator[Store]:
    """The emulator of Google Cloud Storage."""
    with gcs_server.running() as store:
        yield store


@pytest.fixture(scope="session")
def azure() -> Store:
    """Azurite, one for the whole run."""
    return azure_server.store(shared_servers.endpoint("azure"))


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Folder]]:
    """A web server with ranges, and its folder."""
    folder = Folder(tmp_path_factory.mktemp("web"))
    with serving(folder) as store:
        yield store, folder


@pytest.fixture(scope="session")
def the_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Folder]]:
    """The stand-in for the Hugging Face Hub, and its folder."""
    folder = Folder(tmp_path_factory.mktemp("hub"))
    with hub(folder) as store:
        yield store, folder

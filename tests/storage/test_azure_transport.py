"""What is particular to Azure Blob Storage."""

from __future__ import annotations

import os

import pytest

from shardflow.errors import AccessDeniedError, DatasetExistsError
from shardflow.storage.azure_transport import _BLOCK_BYTES as BLOCK_BYTES
from tests.helpers.s3_proxy import Fault, proxying
from tests.helpers.store import Store


def _blocks(store: Store, name: str) -> tuple[list[str], list[str]]:
    """Return the names of the blocks of a blob, and of those that were sent and belong to none yet."""
    from azure.storage.blob import BlobServiceClient

    with BlobServiceClient.from_connection_string(store.options()["connection_string"]) as service:
        committed, others = service.get_blob_client("tests", name).get_block_list("all")
    return [block.id for block in committed], [block.id for block in others]


def test_unfinished_uploads_share_no_blocks(azure: Store, prefix: str) -> None:
    """Each upload names its blocks by itself: what another one left unfinished can become part of no blob."""
    with proxying(azure.endpoint) as proxy:
        proxy.add(Fault(status=403), contains="comp=blocklist", times=2)
        for _ in range(2):
            with pytest.raises(AccessDeniedError):
                azure.storage(prefix, proxy.endpoint).put("a", os.urandom(2 * BLOCK_BYTES + 1))
    assert len(set(_blocks(azure, f"{prefix}/a")[1])) == 6
    data = os.urandom(BLOCK_BYTES + 5)
    azure.storage(prefix).put("a", data, new=True)
    with pytest.raises(DatasetExistsError):
        azure.storage(prefix).put("a", data[::-1], new=True)
    assert azure.storage(prefix).read("a") == data


def test_a_large_blob_is_replaced_only_while_it_is_the_same(azure: Store, prefix: str) -> None:
    """The conditions of a write hold for a blob of several blocks as well."""
    storage, data = azure.storage(prefix), os.urandom(BLOCK_BYTES + 1)
    storage.put("a", b"first")
    version = storage.version("a")
    assert version is not None
    storage.put("a", data, replaces=version.tag)
    with pytest.raises(DatasetExistsError):
        storage.put("a", data[::-1], replaces=version.tag)
    assert storage.read("a") == data


def test_each_request_of_a_large_blob_is_repeated(azure: Store, prefix: str) -> None:
    """A block, and the list of blocks, is sent again with all its bytes after a fault."""
    data = os.urandom(BLOCK_BYTES + 1)
    with proxying(azure.endpoint) as proxy:
        for part in ("comp=block&", "comp=blocklist"):
            proxy.add(Fault(status=503), contains=part, times=1)
        azure.storage(prefix, proxy.endpoint).put("a", data)
        assert proxy.count(contains="comp=block") == 5
    assert azure.storage(prefix).read("a") == data
    committed, others = _blocks(azure, f"{prefix}/a")
    assert (len(committed), others) == (2, [])  # a block is repeated under its own name

"""The records of stores: each is complete, and no two contradict each other."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import fsspec
import pytest

from shardflow.errors import AccessDeniedError, ConfigError, ShardflowError, StoreError
from shardflow.storage import stores
from shardflow.storage.error_mapping import classify
from shardflow.storage.remote import remote_storage
from shardflow.storage.resolve import open_storage
from shardflow.storage.stores import STORES, ChangedError, Rights, Store, store_of
from tests.storage.test_error_mapping import answer, open_to_all

every_store = pytest.mark.parametrize("store", STORES, ids=lambda store: store.schemes[0])


def test_a_scheme_has_one_record() -> None:
    """No scheme is in two records, and one that is in none has the rights that all of fsspec's file systems give."""
    schemes = [scheme for store in STORES for scheme in store.schemes]
    assert len(schemes) == len(set(schemes))
    assert [store_of(f"{scheme}://a/b").schemes for scheme in schemes] == [s.schemes for s in STORES for _ in s.schemes]
    assert store_of("memory://a") == Store(schemes=("memory",))


@every_store
def test_a_record_leads_to_a_transport(store: Store) -> None:
    """The module of a record makes transports, and fsspec knows each of its schemes."""
    assert callable(importlib.import_module(f"shardflow.storage.{store.transport}").connect)
    assert {*store.schemes} <= {*fsspec.available_protocols()}


@every_store
def test_a_record_says_what_to_do(store: Store) -> None:
    """A message of a refusal has no other gaps than those that a record fills; a store to read has another way."""
    for error, message, names in store.refusals:
        assert issubclass(error, ShardflowError)
        assert set(re.findall(r"{.*?}", message)) <= {"{keys}", "{anonymous}"}
        assert names.split()
    keys = [name for _, _, names in store.refusals for name in names.split()]
    assert len(keys) == len(set(keys))
    assert bool(store.remedy) == (store.rights is Rights.READ)


def test_the_root_of_a_url() -> None:
    """A URL begins with a bucket or a host; one of the Hub with a repository, whose kind may be before its name."""
    for url, root in {
        "s3://bucket/a/b": "bucket",
        "https://host:80": "host:80",
        "unknown://a/b": "a",
        "hf://me/photos/a/b": "me/photos",
        "hf://datasets/me/photos/a": "datasets/me/photos",
        "hf://buckets/me": "buckets/me",
        "hf://datasets": "datasets",
    }.items():
        assert store_of(url).match_root(url.partition("://")[2]) == root


def test_a_refusal_means_what_its_own_store_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a code that two stores have, the record of the URL counts; one that it does not know is that of another."""
    own = Store(schemes=("own",), credentials="the badge", refusals=((ConfigError, "check {keys}", "NoSuchBucket"),))
    monkeypatch.setitem(stores._BY_SCHEME, "own", own)
    error = classify(answer(404, "NoSuchBucket"), "own://a", open_to_all).error
    assert (type(error), str(error).partition(" (")[0]) == (ConfigError, "own://a: check the badge")
    assert type(classify(answer(404, "NoSuchUpload"), "own://a", open_to_all).error) is ChangedError


class AuthenticationException(Exception):  # noqa: N818 - paramiko's name
    """The refusal of a login."""

    __module__ = "paramiko.ssh_exception"


def test_a_login_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that cannot even be made says why, by type, as a request does: here a login at `sftp://`."""

    def connect(_: object) -> None:
        raise AuthenticationException("Authentication failed.")

    monkeypatch.setattr("shardflow.storage.fsspec_transport.connect", connect)
    with pytest.raises(AccessDeniedError, match=r"^sftp://host/a .*: check username, .*Authentication failed"):
        remote_storage("sftp://host/a", {"password": "no-such-secret"}).read("b")


def test_the_rights_of_a_record_hold(tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store to read is not written to by any method, and one without conditional writes replaces nothing."""
    place = f"memory://{prefix}"
    remote_storage(place).put("a", b"1")
    with pytest.raises(StoreError, match=r"no conditional writes"):
        remote_storage(place).put("a", b"2", replaces="tag")
    monkeypatch.setitem(stores._BY_SCHEME, "memory", Store(schemes=("memory",), rights=Rights.READ, remedy="move it"))
    storage = remote_storage(place)
    (tmp_path / "source").write_bytes(b"2")
    for write in (
        lambda: storage.put("a", b"2"),
        lambda: storage.put("b", b"2", new=True),
        lambda: storage.put("a", tmp_path / "source"),
        lambda: storage.remove("a"),
        lambda: open_storage(place, to_write=True),
    ):
        with pytest.raises(ConfigError, match="written; write"):
            write()
    assert list(storage.listing()) == ["a"]
    assert storage.read("a") == b"1"
    assert (tmp_path / "source").exists()

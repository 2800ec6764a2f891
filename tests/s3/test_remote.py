from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import multiprocessing
import os
import pickle
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

import shardflow
from shardflow.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ConfigError,
    DatasetExistsError,
    IntegrityError,
    NotFoundError,
    StoreError,
    TransientError,
)
from shardflow.formats import manifest
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import Shard
from shardflow.storage.cache import Cache
from shardflow.storage.cached import SHARED_BYTES, CachedStorage
from shardflow.storage.interface import Storage
from shardflow.storage.remote import PIECES, _ranges, remote_storage
from shardflow.storage.s3_transport import LEAST_PART_BYTES
from tests.helpers.s3_proxy import Fault, Proxy
from tests.helpers.s3_server import PATIENT, PIECE_BYTES, QUICK, SECRET_KEY, Server

DATA = random.Random(5).randbytes(6 * PIECE_BYTES + 99)
SHA256 = hashlib.sha256(DATA).hexdigest()
OTHER = random.Random(6).randbytes(len(DATA))


@pytest.fixture
def direct(server: Server, prefix: str) -> Storage:
    """A storage without a proxy, with a blob."""
    storage = server.storage(prefix)
    storage.put("blob", DATA)
    return storage


@pytest.fixture
def storage(server: Server, prefix: str, proxy: Proxy) -> Storage:
    """The same storage through the proxy."""
    return server.storage(prefix, proxy.endpoint)


def get(storage: Storage, target: Path) -> bytes:
    """The blob, as it comes into a file."""
    storage.get("blob", target, size=len(DATA), sha256=SHA256)
    return target.read_bytes()


@pytest.mark.usefixtures("direct")
def test_ranges_follow_each_other_and_name_what_was_seen_first(storage: Storage, proxy: Proxy, tmp_path: Path) -> None:
    """A blob is asked for piece by piece, each byte once, without looking at it before."""
    assert get(storage, tmp_path / "target") == DATA
    assert {method for method, _, _ in proxy.log} == {"GET"}
    pieces = [tuple(map(int, asked.removeprefix("bytes=").split("-"))) for _, _, asked in proxy.log]
    assert [(start, last + 1) for start, last in sorted(pieces)] == list(_ranges(len(DATA), PIECE_BYTES))


@pytest.mark.usefixtures("direct")
def test_a_large_blob_is_fetched_once_for_a_cache(
    server: Server, prefix: str, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Storages that share a cache fetch a large blob once, again where the copy is damaged, and keep no small one."""
    cache = Cache(tmp_path / "cache")
    pieces = len(list(_ranges(len(DATA), PIECE_BYTES)))
    for requests in (1 + pieces, 1, 1):  # the first shows which content it is
        assert CachedStorage(server.storage(prefix, proxy.endpoint), cache).read("blob") == DATA
        assert proxy.count("GET") == len(proxy.log) == requests
        proxy.clear()
    (copy,) = cache.blobs()
    copy.path.write_bytes(DATA[:-1] + b"x")
    assert CachedStorage(server.storage(prefix, proxy.endpoint), cache).read("blob") == DATA
    assert proxy.count("GET") == 1 + pieces
    server.storage(prefix).put("small", DATA[:SHARED_BYTES])
    assert CachedStorage(server.storage(prefix, proxy.endpoint), cache).read("small") == DATA[:SHARED_BYTES]
    assert [blob.path.name for blob in cache.blobs()] == [SHA256]
    assert not caplog.records


def test_a_large_blob_that_is_replaced_while_it_is_fetched(
    direct: Storage, storage: Storage, proxy: Proxy, tmp_path: Path
) -> None:
    """Where another content is stored than the head said a moment ago, that one is read."""
    cache = Cache(tmp_path / "cache")
    proxy.add(Fault(before=lambda: direct.put("blob", OTHER)), first=1, times=1)
    assert CachedStorage(storage, cache).read("blob") == OTHER
    assert cache.blobs() == []


@pytest.mark.usefixtures("direct")
def test_a_large_blob_and_a_cache_that_cannot_be_used(storage: Storage, proxy: Proxy, tmp_path: Path) -> None:
    """The blob is read all the same; where its store fails, it is not asked again for the time of another patience."""
    (tmp_path / "file").touch()
    assert CachedStorage(storage, Cache(tmp_path / "file/cache")).read("blob") == DATA
    proxy.clear()
    proxy.add(Fault(status=503, code="SlowDown"), first=1)
    with pytest.raises(TransientError, match=r"blob.*tried \d+ times") as caught:
        CachedStorage(storage, Cache(tmp_path / "cache")).read("blob")
    assert caught.value.__context__ is None or "BlobTooLargeError" not in str(type(caught.value.__context__))
    assert len(proxy.log) <= 1 + PIECES * PATIENT.attempts


def test_a_range_of_a_blob_that_is_replaced_while_it_is_read(direct: Storage, storage: Storage, proxy: Proxy) -> None:
    """It is read again from the start, so that all of its bytes are of one version."""
    proxy.add(Fault(reset_after=1000), times=1)
    proxy.add(Fault(before=lambda: direct.put("blob", OTHER)), times=1)
    assert storage.read_range("blob", 100, 90_000) == OTHER[100:90_000]


@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("claimed", ["../../outside", "0" * 64])
def test_a_large_blob_whose_head_claims_another_content(
    storage: Storage, proxy: Proxy, tmp_path: Path, claimed: str
) -> None:
    """It is an error that says so; no file is left in the cache, and none outside of it is touched."""
    cache, outside = Cache(tmp_path / "cache"), tmp_path / "outside"
    outside.write_bytes(b"mine")
    proxy.add(Fault(answer_headers=(("x-amz-meta-sha256", claimed),)))
    with pytest.raises(
        IntegrityError, match=f"blob: expected SHA-256 {claimed}, with which it was stored, found {SHA256}"
    ):
        CachedStorage(storage, cache).read("blob")
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"outside", "CACHEDIR.TAG"}
    assert outside.read_bytes() == b"mine"


def test_the_manifest_of_many_shards_is_fetched_once_for_a_host(
    server: Server, prefix: str, proxy: Proxy, tmp_path: Path
) -> None:
    """Ranks that open a dataset with a large manifest read it from their cache, of the newest version and of others."""
    shards = (
        Shard(name=f"train/{n:06d}.tar", samples=1, bytes=1024, sha256=SHA256, index_sha256=SHA256) for n in count()
    )
    old, new = (Manifest(splits={"train": tuple(islice(shards, n))}, inputs=n) for n in (9_000, 10_000))
    server.storage(prefix).put(manifest.FILE_NAME, new.to_bytes())
    server.storage(prefix).put(manifest.kept_name(old.fingerprint), old.to_bytes())
    options = server.options(proxy.endpoint)
    for version, samples, fetched, known in ((None, 10_000, 2, 1), (old.fingerprint, 9_000, 1 + 2, 2)):
        for requests in (fetched, known):
            proxy.clear()
            dataset = shardflow.open(
                server.url(prefix), storage_options=options, cache=tmp_path / "cache", version=version
            )
            assert len(dataset["train"]) == samples
            assert len(proxy.log) == requests


@pytest.mark.usefixtures("direct")
def test_a_broken_body_goes_on_where_it_broke(storage: Storage, proxy: Proxy, tmp_path: Path) -> None:
    """The bytes of a piece that have arrived are not requested again."""
    # Slowly, as aiohttp drops what has arrived but was not read when the connection ends.
    proxy.add(Fault(end_after=100_000, bytes_per_s=400_000), first=1, times=1)
    assert get(storage, tmp_path / "target") == DATA
    starts = {int(asked[6:].split("-")[0]) for _, _, asked in proxy.log}
    pieces = list(_ranges(len(DATA), PIECE_BYTES))
    (resumed,) = starts - {start for start, _ in pieces}
    assert any(start < resumed <= start + 100_000 and resumed < stop for start, stop in pieces)


@pytest.mark.usefixtures("direct")
def test_progress_renews_the_limits(storage: Storage, proxy: Proxy, tmp_path: Path) -> None:
    """A connection that breaks again and again, each time further on, is no reason to give up."""
    proxy.add(Fault(reset_after=PATIENT.window_bytes + 10_000))
    assert get(storage, tmp_path / "target") == DATA
    assert len(proxy.log) > 7 + PATIENT.attempts


def test_an_object_replaced_while_it_is_read_is_never_mixed(
    direct: Storage, storage: Storage, proxy: Proxy, tmp_path: Path
) -> None:
    """A blob replaced under a reader is read anew: the new one whole, or an error when it is not the right one."""

    def replace_at(request: int) -> None:
        direct.put("blob", DATA)
        proxy.clear()
        proxy.add(Fault(before=lambda: direct.put("blob", OTHER)), first=request, times=1)

    for request in (1, 3, 6):
        replace_at(request)
        assert storage.read("blob") == OTHER
        replace_at(request)
        with pytest.raises(IntegrityError, match="expected SHA-256"):
            get(storage, tmp_path / "target")
        assert not (tmp_path / "target").exists()


def test_an_object_that_keeps_changing_is_an_error(direct: Storage, storage: Storage, proxy: Proxy) -> None:
    """A blob replaced in every attempt to read it is an IntegrityError whose remedy is to stop the writer."""
    turn = count()
    proxy.add(Fault(before=lambda: direct.put("blob", next(turn).to_bytes(4, "big") + DATA[4:])), first=1)
    with pytest.raises(IntegrityError, match=r"blob.*was replaced.*tried 3 times"):
        storage.read("blob")


@pytest.mark.usefixtures("direct")
def test_wrong_bytes_are_met_with_the_same_patience(storage: Storage, proxy: Proxy, tmp_path: Path) -> None:
    """Bytes damaged on the way, differently each time, are fetched again; the error says how often it was tried."""
    for read in (lambda: storage.read("blob"), lambda: get(storage, tmp_path / "target")):
        proxy.clear()
        proxy.add(Fault(flip=1000), first=3, times=1)  # of seven or eight requests
        proxy.add(Fault(flip=1001), first=11, times=1)
        assert read() == DATA
    proxy.clear()
    proxy.add(Fault(flip=1000))
    with pytest.raises(IntegrityError, match=r"expected SHA-256 .*; tried 3 times in \d+ s$"):
        storage.get("blob", tmp_path / "other", size=len(DATA), sha256=SHA256)


def test_bytes_that_are_stored_wrong_are_told_from_damage_on_the_way(
    server: Server, direct: Storage, tmp_path: Path
) -> None:
    """With attempts left, an object whose bytes are wrong in the same way each time is an error after four reads."""
    patient = replace(PATIENT, attempts=50)
    storage = remote_storage(str(direct), server.options(), retry_policy=patient)
    with pytest.raises(IntegrityError, match=r"expected SHA-256 0{64}, found .*; tried 4 times in \d+ s$"):
        storage.get("blob", tmp_path / "target", size=len(DATA), sha256="0" * 64)


@pytest.mark.parametrize(
    ("status", "code", "kind", "remedy"),
    [
        (404, "NoSuchKey", NotFoundError, "check the path"),
        (404, "NoSuchBucket", NotFoundError, "check its name"),
        (403, "AccessDenied", AccessDeniedError, "do not allow this"),
        (403, "SignatureDoesNotMatch", AccessDeniedError, "check the access key and its secret"),
        (400, "ExpiredToken", AccessDeniedError, "get new credentials"),
        (403, "RequestTimeTooSkewed", AccessDeniedError, "set the clock"),
        (400, "AuthorizationHeaderMalformed", ConfigError, "AWS_REGION"),
    ],
)
def test_permanent_refusals_are_tried_once(
    storage: Storage, proxy: Proxy, status: int, code: str, kind: type[Exception], remedy: str
) -> None:
    """A permanent refusal is raised after one request, typed, with its remedy."""
    proxy.add(Fault(status=status, code=code))
    with pytest.raises(kind, match=remedy):
        storage.read("blob")
    assert len(proxy.log) == 1


@pytest.mark.usefixtures("direct")
def test_retry_after_is_honoured(storage: Storage, proxy: Proxy) -> None:
    """No request is made before the time that the server asked for."""
    proxy.add(Fault(status=503, code="SlowDown", answer_headers=(("Retry-After", "1"),)), times=1)
    began = time.monotonic()
    assert storage.read("blob") == DATA
    assert time.monotonic() - began >= 1


def test_attempts_are_ours_alone(storage: Storage, proxy: Proxy) -> None:
    """Neither botocore nor s3fs tries again on its own: a steady failure costs exactly the attempts allowed."""
    proxy.add(Fault(status=503, code="SlowDown"))
    read, version = functools.partial(storage.read, "blob"), functools.partial(storage.version, "blob")
    for act in (read, functools.partial(storage.put, "blob", b""), storage.listing, version):
        proxy.log.clear()
        with pytest.raises(TransientError, match=f"tried {PATIENT.attempts} times"):
            act()
        method = proxy.log[0][0]  # after a failed write, the object is looked at
        assert proxy.count(method) == PATIENT.attempts


@pytest.mark.parametrize("fault", [Fault(reset=True, reaches_server=True), Fault(status=500, reaches_server=True)])
def test_a_lost_answer_to_a_creation_is_looked_into(storage: Storage, proxy: Proxy, fault: Fault) -> None:
    """When the answer to our own creation is lost, it counts as ours; an object of another writer does not."""
    proxy.add(fault, times=1)
    storage.put("mine", DATA, new=True)
    assert storage.read("mine") == DATA
    proxy.clear()
    proxy.add(fault, method="PUT")
    storage.put("also mine", DATA, new=True)
    proxy.clear()
    proxy.add(Fault(reset=True), times=1)
    for data in (OTHER, DATA):  # also when it holds the same: it was there before
        with pytest.raises(DatasetExistsError):
            storage.put("mine", data, new=True)
    assert storage.read("mine") == DATA


def test_a_lost_answer_to_a_completion_is_looked_into(
    storage: Storage, proxy: Proxy, server: Server, prefix: str, tmp_path: Path
) -> None:
    """When only the answer to the last request of an upload is lost, the upload has succeeded, and is reported so."""
    data = random.Random(7).randbytes(LEAST_PART_BYTES + 1)
    (tmp_path / "source").write_bytes(data)
    for times in (1, PATIENT.attempts):
        (tmp_path / "source").write_bytes(data)
        proxy.clear()
        proxy.add(Fault(reset=True, reaches_server=True), method="POST", contains="uploadId", times=times)
        storage.put(f"blob{times}", tmp_path / "source")
        assert storage.read(f"blob{times}") == data
    assert server.open_uploads(prefix) == []


def interrupted_upload(url: str, options: dict[str, Any], source: Path) -> None:
    """Upload a file until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt):
        remote_storage(url, options).put("blob", source)


def test_an_interrupted_upload_is_aborted(proxy: Proxy, server: Server, prefix: str, tmp_path: Path) -> None:
    """Ctrl-C in the middle of an upload leaves neither a blob nor an open upload."""
    (tmp_path / "source").write_bytes(bytes(20 << 20))
    proxy.add(Fault(latency_s=30.0), contains="partNumber=2")
    arguments = (server.url(prefix), server.options(proxy.endpoint), tmp_path / "source")
    child = multiprocessing.get_context("spawn").Process(target=interrupted_upload, args=arguments)
    child.start()
    while not proxy.count(contains="partNumber=2"):
        time.sleep(0.05)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(20)
    assert child.exitcode == 0
    assert server.open_uploads(prefix) == []
    assert server.storage(prefix).listing() == {}


@pytest.mark.usefixtures("direct")
def test_threads_share_a_storage(storage: Storage, tmp_path: Path) -> None:
    """Several threads read through one storage at once."""
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda n: get(storage, tmp_path / str(n)), range(6))) == [DATA] * 6


def read_in_child(storage: Storage, results: Any) -> None:
    """Read the blob in another process."""
    results.put(storage.read("blob") == DATA)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_other_processes_use_a_storage(direct: Storage, method: str) -> None:
    """A storage in use serves child processes of every start method, and its own process meanwhile and afterwards."""
    assert direct.read("blob") == DATA
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    children = [context.Process(target=read_in_child, args=(direct, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert direct.read("blob") == DATA
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert [results.get() for _ in children] == [True, True]
    assert direct.read("blob") == DATA


def test_ordinary_configuration_works(server: Server, direct: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without storage_options, credentials and endpoint come from the environment."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    assert remote_storage(str(direct)).read("blob") == DATA


def test_wrong_keys_and_no_keys(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key, a wrong secret and no key are AccessDeniedErrors with their remedies."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in server.environment():
        monkeypatch.delenv(name, raising=False)
    cases = [
        (server.options() | {"key": "unknown"}, "does not know the access key"),
        (server.options() | {"secret": "wrong secret"}, "secret does not belong to the access key"),
        ({"endpoint_url": server.endpoint}, "no credentials were found"),
        ({"endpoint_url": server.endpoint, "anon": True}, "do not allow this"),
    ]
    for options, remedy in cases:
        storage = remote_storage(server.url("x"), options, retry_policy=PATIENT)
        for act in (
            functools.partial(storage.read, "blob"),
            functools.partial(storage.version, "blob"),
            storage.listing,
        ):
            with pytest.raises(AccessDeniedError, match=remedy):
                act()


def texts(error: BaseException | None) -> Iterator[str]:
    """Yield the texts of an exception and its causes."""
    while error is not None:
        yield f"{error} {error!r} {error.args}"
        error = error.__cause__ or error.__context__


def test_secrets_are_never_shown(server: Server, proxy: Proxy, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """A secret is in no text of the storage, no pickle, no exception or its cause, and no log."""
    caplog.set_level(logging.DEBUG)
    storage = server.storage(prefix, proxy.endpoint, QUICK)
    assert SECRET_KEY.encode() not in pickle.dumps(storage)
    told = [str(storage), repr(storage), storage.url("blob"), f"{storage}"]
    faults = [Fault(status=status, code=SECRET_KEY) for status in (400, 403, 404, 500)]
    for fault in [*faults, Fault(reset=True), Fault(hang=True), Fault(flip=0), Fault(status=200)]:
        proxy.clear()
        proxy.add(fault)
        for act in (lambda: storage.read("blob"), lambda: storage.put("blob", b"1"), storage.listing):
            try:
                act()
            except (StoreError, IntegrityError) as error:
                told += texts(error)
    told += [record.getMessage() for record in caplog.records if record.name.startswith("shardflow")]
    assert SECRET_KEY not in "\n".join(told)


def test_secrets_of_a_url_are_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the credentials nor the query of a URL are shown, also not in errors."""
    caplog.set_level(logging.DEBUG, logger="shardflow")
    storage = remote_storage("http://user:canary-one@127.0.0.1:1/data?sig=canary-two", retry_policy=QUICK)
    with pytest.raises(StoreError) as caught:
        storage.read("blob")
    told = "\n".join([*texts(caught.value), str(storage), repr(storage), caplog.text, repr(pickle.dumps(storage))])
    assert "canary" not in told
    for url in ("s3://key:canary@bucket/x", "s3://bucket/x?secret=canary", "http://user:canary@[bad"):
        with pytest.raises(ConfigError) as refused:
            remote_storage(url)
        assert "canary" not in "\n".join(texts(refused.value))


def test_a_pickle_in_a_file_has_no_options_and_says_so(direct: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage from an ordinary pickle has no credentials; when it is refused, the message gives the reason."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "unknown")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "unknown")
    with pytest.raises(AccessDeniedError, match="unpickled, without its storage_options"):
        pickle.loads(pickle.dumps(direct)).read("blob")


def test_clients_share_the_description_of_s3(server: Server, prefix: str) -> None:
    """The clients of a process read botocore's description of S3 once: parsing it is most of the cost of a client."""
    transports: list[Any] = [server.storage(prefix)._inner._transport() for _ in range(2)]  # type: ignore[attr-defined]
    first, second = (transport._client.fs.session.get_component("data_loader") for transport in transports)
    assert first is second


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ({"AWS_PROFILE": "nobody"}, {}, "s3://bucket/prefix: check AWS_PROFILE"),
        ({}, {"profile": "nobody"}, "check AWS_PROFILE"),
        ({"AWS_CONFIG_FILE": "garbage"}, {}, "check AWS_CONFIG_FILE"),
        ({}, {"nosuch": 1}, "with these storage_options: .*nosuch"),
        ({}, {"config_kwargs": None}, "with these storage_options: .*NoneType"),
    ],
)
def test_wrong_configuration_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    options: dict[str, Any],
    message: str,
) -> None:
    """Missing profiles, invalid files and unknown options are ConfigErrors that name them."""
    (tmp_path / "garbage").write_text("garbage\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "AWS_CONFIG_FILE" else value)
    with pytest.raises(ConfigError, match=message):
        remote_storage("s3://bucket/prefix", options).read("blob")


def test_a_missing_bucket_is_named(server: Server) -> None:
    """A dataset in a bucket that does not exist is a BucketNotFoundError, and not a missing dataset."""
    with pytest.raises(BucketNotFoundError, match="check its name and the endpoint"):
        shardflow.open("s3://nobody/set", storage_options=server.options())


def test_a_prefix_that_no_url_can_name_is_refused(server: Server) -> None:
    """A '#' would begin something else in a URL, by which a view names its tars."""
    with pytest.raises(ConfigError, match="cannot contain '#'"):
        shardflow.open(server.url("a#b"), storage_options=server.options())


def test_open_uploads_of_named_blobs_are_aborted(server: Server, prefix: str) -> None:
    """The uploads that a killed writer left open are aborted for the named blobs, and for no other; blobs stay."""
    storage, client = server.storage(prefix), server.client()
    storage.put("train/0.tar", b"there")
    for name in ("train/0.tar", "train/0.tar", "train/1.tar"):
        client.call_s3("create_multipart_upload", Bucket=server.bucket, Key=f"{prefix}/{name}")
    assert len(server.open_uploads(prefix)) == 3
    storage.abort_uploads({"train/0.tar", "train/2.tar"})
    assert [key for key, _ in server.open_uploads(prefix)] == [f"{prefix}/train/1.tar"]
    assert storage.read("train/0.tar") == b"there"

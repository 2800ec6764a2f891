from __future__ import annotations

from pathlib import Path

import pytest

from shardflow.errors import ConfigError
from shardflow.storage.resolve import open_storage
from shardflow.storage.urls import (
    RemoteUrl,
    canonical_root,
    divide_query,
    is_remote,
    join_name,
    remote_options,
    split_name,
    strip_file_scheme,
    url_text,
)

SECRETS = {
    "secret": "canary-1",
    "token": b"canary-2",
    "client_kwargs": {"headers": ["canary-3", {"password": "canary-4"}]},
    "unheard-of": ("canary-5", b"\xff\xff\xff\xff"),
}


def test_scheme_host_and_path_are_shown() -> None:
    """A URL is shown without user, password, query, fragment and last slash."""
    for url, shown in {
        "s3://bucket/a/X/": "s3://bucket/a/X",
        "s3://bucket/a://b": "s3://bucket/a://b",
        "https://user:canary@host:8000/a?sig=canary#b": "https://host:8000/a",
        "memory://a": "memory://a",
        "abfss://box@me.dfs.core.windows.net/a/": "abfss://box@me.dfs.core.windows.net/a",
        "abfss://box:canary@me.dfs.core.windows.net/a": "abfss://me.dfs.core.windows.net/a",
    }.items():
        assert str(RemoteUrl(url, {})) == shown
    stores = [RemoteUrl(url, {}).store for url in ("s3a://b/a://b", "https://host", "memory://a")]
    assert [store.schemes[0] for store in stores] == ["s3", "https", "memory"]


@pytest.mark.parametrize("url", ["s3://key:canary@bucket/x", "s3://bucket/x?key=canary", "s3a://canary@bucket"])
def test_a_buckets_url_holds_no_secrets(url: str) -> None:
    """Credentials in the URL of a bucket are refused, without repeating them, and with where they belong."""
    with pytest.raises(ConfigError, match="belong in storage_options") as caught:
        RemoteUrl(url, {})
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"s3://bucket/a:.*dataset's URL.*'#'"):
        RemoteUrl("s3://bucket/a#b", {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        *(("bucket/x", "bucket/x"), ("://x", "://x"), ("1s3://x", "1s3://x"), ("user:canary@host/x", "host/x")),
        ("http://us@r:canary@[x?canary?canary", "[x"),
    ],
)
def test_invalid_urls_are_refused(url: str, shown: str) -> None:
    """The message shows the text up to a query, without a possible password."""
    with pytest.raises(ConfigError) as caught:
        RemoteUrl(url, {})
    assert str(caught.value) == f"{shown}: not a URL; expected one such as s3://bucket/prefix"


@pytest.mark.parametrize(
    ("url", "begin"),
    [
        *(("s3:/bucket/x", "s3:/"), ("S3:/bucket/x", "S3:/"), ("s3:bucket/x", "s3:"), ("https:/host/x", "https:/")),
        ("gs:bucket", "gs:"),
    ],
)
def test_a_missing_slash_is_no_directory(url: str, begin: str) -> None:
    """A URL with too few slashes is refused, instead of taken for a directory of that name; `./` makes it one."""
    with pytest.raises(ConfigError, match=f"a URL must begin with '[a-z0-9]+://', found '{begin}'; write both"):
        open_storage(url)
    assert url_text(f"./{url}") == f"./{url}"


@pytest.mark.parametrize("url", ["pipe:curl -H canary https://host/{0..9}.tar", "pipe:cat a.tar"])
def test_no_command_is_started(url: str) -> None:
    """A command, as webdataset takes, is refused with what to write instead, and not repeated."""
    with pytest.raises(ConfigError, match=r"started;.*themselves") as caught:
        open_storage(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3a:///"])
def test_a_buckets_url_names_the_bucket(url: str) -> None:
    """A URL without a bucket is refused before any request."""
    with pytest.raises(ConfigError, match=r"^s3a?://: the bucket is missing; expected s3://bucket/prefix"):
        open_storage(url)


def test_every_option_is_secret_but_for_some() -> None:
    """Without secrets, only options remain that are known to be harmless, and only when their values look so."""
    harmless = {"endpoint_url": "http://127.0.0.1:1", "anon": True, "profile": "me"}
    address = RemoteUrl("https://user:canary@host/a?sig=canary", {**SECRETS, **harmless})
    bare = address.without_secrets()
    assert (bare.url, bare.options) == ("https://host/a", harmless)
    assert address.holds_secrets()
    assert not bare.holds_secrets()
    assert not RemoteUrl("s3://bucket/X/", {}).holds_secrets()
    for endpoint in ("http://user:canary@host", "http://host?sig=canary"):
        suspicious = RemoteUrl("s3://bucket/a", {"endpoint_url": endpoint})
        assert suspicious.holds_secrets()
        assert suspicious.without_secrets().options == {}
        assert suspicious.leaks_in(ValueError(f"cannot connect to {endpoint}/a"))


@pytest.mark.parametrize(("url", "remedy"), [("https://host/a", "copy it to the server"), ("hf://a/b", "hf upload")])
def test_some_places_can_only_be_read(url: str, remedy: str) -> None:
    """A web server and the Hub are not written to; the error has another way."""
    with pytest.raises(ConfigError, match=rf"{url}:.*disk.*{remedy}"):
        RemoteUrl(url, {}).check_writable()
    RemoteUrl("s3://bucket/a", {}).check_writable()


@pytest.mark.parametrize("secret", ["canary-1", "canary-2", "canary-3", "canary-4", "canary-5", "sig=6", "canary-7"])
def test_a_secret_is_found_in_an_error_and_behind_it(secret: str) -> None:
    """Any text of any option that may be secret, the query and the password are found, in whatever was raised first."""
    address = RemoteUrl("https://user:canary-7@host/a?sig=6", SECRETS)
    first = ValueError(f"<Key>{secret}</Key>")
    second = KeyError("nothing")
    second.__context__ = first
    third = OSError("nothing either")
    third.__cause__ = second
    assert [address.leaks_in(error) for error in (first, second, third)] == [True] * 3
    assert not address.leaks_in(ValueError("host, a, user, nothing"))
    assert not address.leaks_in(None)


def test_harmless_and_short_texts_are_no_secrets() -> None:
    """A message may name the endpoint, and a text that is in any message by chance does not silence it."""
    address = RemoteUrl("s3://bucket/a", {"endpoint_url": "http://store.example", "secret": "a"})
    assert not address.leaks_in(ValueError("http://store.example: a failure"))
    assert RemoteUrl("s3://bucket/a", {"secret": "four"}).leaks_in(ValueError("four"))


@pytest.mark.parametrize("name", ["AccountKey", "SharedAccessSignature"])
def test_a_secret_within_a_connection_string_is_found(name: str) -> None:
    """An error that repeats the key alone, and not the whole of Azure's connection string, is found as well."""
    address = RemoteUrl("az://box/a", {"connection_string": f"AccountName=me;{name}=canary==;EndpointSuffix=net"})
    assert address.leaks_in(ValueError("signed with canary=="))
    assert not address.leaks_in(ValueError("AccountName=me"))


def test_a_query_is_of_web_urls_alone() -> None:
    """A query stays behind a name that is joined, and is not part of a file's name; a key can have a question mark."""
    assert divide_query("HTTPS://host/a?b/c?d") == ("https://host/a", "?b/c?d")
    assert divide_query("s3://bucket/a?b") == ("s3://bucket/a?b", "")
    assert join_name("https://host/a/?b/c", "x.jpg") == "https://host/a/x.jpg?b/c"
    assert join_name("a/b", "x.jpg") == "a/b/x.jpg"
    assert split_name("https://host/a/t.csv?b/c.d") == ("https://host/a?b/c.d", "t.csv")
    assert [split_name(path) for path in ("t.csv", "/t.csv", "a/t?.csv")] == [
        (".", "t.csv"),
        ("/", "t.csv"),
        ("a", "t?.csv"),
    ]


def test_options_belong_to_urls() -> None:
    """A directory takes no storage_options: they are for another argument of the same command."""
    options = {"anon": True}
    assert remote_options("s3://bucket/a", options) == options
    assert remote_options("a/b", options) is remote_options("file:///a/b", options) is None


def test_the_home_directory_and_schemes_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the home directory, of a path and nowhere else; a scheme may be in capitals."""
    monkeypatch.setenv("HOME", "/home/me")
    for url, text in {
        "~/photos": "/home/me/photos",
        Path("~/photos"): "/home/me/photos",
        "a/~/b": "a/~/b",
        "S3://Bucket/~/A": "s3://Bucket/~/A",
        "FILE:/a%20b": "file:/a%20b",
        "a:b": "a:b",
    }.items():
        assert url_text(url) == text
    assert strip_file_scheme("FILE:/a%20b") == "/a b"
    assert is_remote("S3://bucket/a")
    assert strip_file_scheme("/a%20b") == "/a%20b"
    assert canonical_root("~/a") == canonical_root("/home/me/b/../a") == "/home/me/a"
    assert canonical_root("S3://bucket/b/../a") == "s3://bucket/b/../a"
    assert str(open_storage("~/photos")) == "/home/me/photos"


@pytest.mark.parametrize("wrong", [None, 5, ["a"]])
def test_what_is_no_path(wrong: object) -> None:
    """Anything but a path is refused with what is expected."""
    with pytest.raises(ConfigError, match=r"expected.*URL"):
        open_storage(wrong)  # type: ignore[arg-type]

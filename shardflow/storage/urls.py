"""URLs: which are remote, how to divide one into root and name, and how messages show one without secrets."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from shardflow.errors import ConfigError

from .stores import Rights, has_record, store_of

_LEAST_SECRET_CHARACTERS = 4  # shorter texts occur in any message by chance
_QUOTINGS = 4  # nested levels of quoting that are undone
_MOST_SECRET_CHARACTERS = 16  # that are compared, because an answer may be cut off within a secret
_USER = re.compile(r"//[^/]*@")
_MAY_BE_SIGNED = re.compile(r"""://[^\s"'<>]*\?[^\s"'<>]|\bbearer\s+\S""", re.IGNORECASE)


def url_text(url: str | os.PathLike[str]) -> str:
    """Return a path or URL as text, with the home directory for `~`, and the scheme in lower case."""
    try:
        text = os.fspath(url)
    except TypeError:
        raise ConfigError(f"expected a path or a URL, found {url!r}") from None
    scheme, separator, rest = text.partition(":")
    if separator and (rest.startswith("//") or scheme.lower() == "file"):
        return f"{scheme.lower()}:{rest}"
    if separator and scheme == "pipe":  # as in webdataset; the command may hold secrets, and is not repeated
        remedy = "name the tars themselves, as in s3://bucket/prefix/{000000..000099}.tar"
        raise ConfigError(f"a URL cannot begin with 'pipe:', because no command is ever started; {remedy}")
    if separator and has_record(scheme.lower()):
        start = f"{scheme}:{'/' if rest.startswith('/') else ''}"
        message = f"a URL must begin with '{scheme.lower()}://', found '{start}'"
        raise ConfigError(f"{message}; write both slashes, or './{start}…' for a directory of that name")
    return os.path.expanduser(text)


def strip_file_scheme(url: str | os.PathLike[str]) -> str:
    """Return the path of a `file:` URL, and any other path or URL as `url_text` does."""
    text = url_text(url)
    return unquote(urlsplit(text).path) if text.startswith("file:") else text


def is_remote(url: str | os.PathLike[str]) -> bool:
    """Return whether this is a URL of something other than this machine's disks."""
    text = url_text(url)
    return "://" in text and not text.startswith("file:")


def remote_options(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options for a URL; None for a directory, for which they are not meant."""
    return storage_options if is_remote(url) else None


def canonical_root(root: str) -> str:
    """Return a directory without links and relative steps, or a URL."""
    return url_text(root) if is_remote(root) else os.path.realpath(url_text(root))


class DividedUrl(NamedTuple):
    """A path or URL, and its query with the question mark; "" without one. The query may be a signature."""

    place: str
    query: str


def divide_query(url: str | os.PathLike[str]) -> DividedUrl:
    """Divide a path or URL from its query. Only web URLs have one: a key in a bucket may contain `?`."""
    text = url_text(url)
    if not store_of(text).has_query:
        return DividedUrl(text, "")
    place, mark, query = text.partition("?")
    return DividedUrl(place, mark + query)


def join_name(root: str, name: str) -> str:
    """Return the path or URL of a name below a root; the query of the root stays at the end."""
    place, query = divide_query(root)
    return f"{place.rstrip('/')}/{name}{query}"


def split_name(url: str) -> tuple[str, str]:
    """Return the directory or URL of a file, with the URL's query, and the file's name in it."""
    place, query = divide_query(url)
    folder, slash, name = place.rpartition("/")
    return (folder or slash or ".") + query, name


def shown_url(url: str | os.PathLike[str]) -> str:
    """Return a path or URL as messages show it: without user, password, query and fragment."""
    text = url_text(url)
    if not is_remote(text):
        return text
    if "::" in text:  # a chain: zip://FILE::https://USER:PASSWORD@HOST/x.zip
        return _USER.sub("//", text.partition("?")[0]).rstrip("/")
    try:
        scheme, netloc, path, _, _ = urlsplit(text)
    except ValueError:
        return text.partition("?")[0].rpartition("@")[2]
    return f"{scheme}://{public_host(scheme, netloc)}{path.rstrip('/')}"  # with "//" even without a host


def public_host(scheme: str, netloc: str) -> str:
    """Return the host of a URL without user and password, but with Azure's container: abfss://CONTAINER@ACCOUNT/."""
    user, _, host = netloc.rpartition("@")
    return netloc if store_of(f"{scheme}://").user_is_container and ":" not in user else host


def blob_url(root: str, name: str) -> str:
    """Return the URL of a blob below a root, without a query, for messages; with an empty name, that of the root."""
    return divide_query(f"{root}/{name}" if name else root).place


class RemoteUrl:
    """A URL with its storage_options, and the record of its store."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        self.options = dict(options)
        self.scheme = url.partition("://")[0]
        try:
            parts = urlsplit(url)
            place = parts.netloc.rpartition("@")[2]
        except ValueError:
            self.scheme = ""
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*", self.scheme):
            text = url.partition("?")[0].rpartition("@")[2]
            raise ConfigError(f"{text}: not a URL; expected one such as s3://bucket/prefix")
        self.store = store_of(url)
        self.shown = shown_url(url)
        if self.store.bucket_alone:
            if parts.query or "@" in parts.netloc:
                remedy = "credentials and queries belong in storage_options, not in a bucket's URL"
                raise ConfigError(f"{self.shown}: {remedy}")
            if "#" in url:
                raise ConfigError(f"{self.shown}: a dataset's URL cannot contain '#'; choose a prefix without it")
            if not place:
                raise ConfigError(f"{self.scheme}://: the bucket is missing; expected s3://bucket/prefix")
        texts = _texts(self.options, self.store.harmless_options)
        self._secrets = _comparable({parts.query, *query_values(parts.query), parts.password or "", *texts})

    def __str__(self) -> str:
        return self.shown

    def check_writable(self) -> None:
        """Raise a ConfigError if the URL's scheme is read-only."""
        if self.store.rights is Rights.READ:
            rule = f"{self.scheme}:// URLs can be read, but not written"
            raise ConfigError(f"{self}: {rule}; write to a disk, and {self.store.remedy}")

    def without_secrets(self) -> RemoteUrl:
        """Return the URL and the options without possible secrets."""
        harmless = self.store.harmless_options
        kept = {name: value for name, value in self.options.items() if name in harmless and not _suspicious(value)}
        return RemoteUrl(self.shown, kept)

    def holds_secrets(self) -> bool:
        """Return whether the URL or the options may hold a secret."""
        bare = self.without_secrets()
        return (bare.url, bare.options) != (self.url.rstrip("/"), self.options)

    def leaks_in(self, error: BaseException | None, more: Iterable[str] = ()) -> bool:
        """Return whether the text of an exception or one of its causes contains a secret, or one of `more` texts.

        A client or server may quote, escape or cut off a URL in its own way, so only letters and digits are compared.
        """
        secrets = self._secrets | _comparable(more)
        while error is not None:
            text = f"{error} {error!r}"
            if self.store.may_be_signed and _MAY_BE_SIGNED.search(text):
                return True
            if any(secret in each for each in (text, _plain(text)) for secret in secrets):
                return True
            error = error.__cause__ or error.__context__
        return False


def query_values(query: str) -> list[str]:
    """Return the values of a query, each of which may be a secret."""
    return [value for _, value in parse_qsl(query.removeprefix("?"))]


def _comparable(secrets: Iterable[str]) -> frozenset[str]:
    """Return secrets in the form of `_plain`, except those with few letters and digits."""
    long = (secret for secret in secrets if len(secret) >= _LEAST_SECRET_CHARACTERS)
    found = (plain if len(plain := _plain(secret)) >= _LEAST_SECRET_CHARACTERS else secret for secret in long)
    return frozenset(secret[:_MOST_SECRET_CHARACTERS] for secret in found)


def _plain(text: str) -> str:
    """Return the letters and digits of a text, after undoing up to four levels of URL, HTML or JSON quoting."""
    for _ in range(_QUOTINGS):
        before = text
        text = re.sub(r"\\(?:u00|x)([0-9a-fA-F]{2})", r"%\1", text)
        text = html.unescape(unquote(text))
        if text == before:
            break
    return "".join(filter(str.isalnum, text)).casefold()


def _texts(value: object, harmless: Container[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in harmless or _suspicious(inner):
                yield from _texts(inner, harmless)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, harmless)
    elif isinstance(value, str):
        yield value
        yield from re.findall(r"(?:AccountKey|SharedAccessSignature)=([^;]+)", value)  # of Azure's connection string
    elif isinstance(value, bytes):
        yield value.decode(errors="replace")


def _suspicious(value: object) -> bool:
    """Return whether a harmless option, such as an endpoint, may hold credentials or a signature."""
    return isinstance(value, str) and ("@" in value or "?" in value)

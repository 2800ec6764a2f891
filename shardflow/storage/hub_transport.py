"""The transport for the Hugging Face Hub, which serves files over HTTP, after redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .fsspec_transport import file_system
from .http_answer import web_file_system
from .http_transport import HttpTransport
from .transport import Connection


def connect(connection: Connection) -> HttpTransport:
    """Return the transport for a path of huggingface_hub's HfFileSystem.

    The Hub redirects requests of large files to another server; aiohttp does not send the token there.
    """
    fs, path = file_system(connection)
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    web = web_file_system()
    places: list[Any] = []

    async def locate(name: str) -> tuple[str, Mapping[str, str]]:
        if not places:  # asks the Hub whether the repository exists
            places.append(await asyncio.to_thread(fs.resolve_path, path))
        place = places[0]
        if hasattr(place, "bucket_id"):
            found = f"{fs.endpoint}/buckets/{place.bucket_id}/resolve/{quote(f'{place.path}/{name}'.lstrip('/'))}"
        else:
            within = f"{place.path_in_repo}/{name}".lstrip("/")
            kind = {"repo_type": place.repo_type, "revision": place.revision, "endpoint": fs.endpoint}
            found = hf_hub_url(place.repo_id, within, **kind)
        return web.encode_url(found), build_hf_headers(token=fs.token)

    return HttpTransport(connection, fs, path, web, locate)

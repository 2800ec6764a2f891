"""webdataset on the very shards that shardflow packed, fetched by curl, s3fs or s3torchconnector.

webdataset itself has `pipe:`, for which the links are signed beforehand, so that curl will do: starting the AWS tools
for each shard costs more. For what can be opened like a file, the scheme s3 is registered.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import boto3
import fsspec
import s3fs  # noqa: F401 - what fsspec opens s3:// with; importing is not measured
import webdataset as wds
from s3torchconnector import S3ClientConfig, S3MapDataset
from webdataset.gopen import gopen_schemes

from . import Place, Start
from .augmentations import tensors
from .recipe import BATCH, BUFFER, WORKERS


def open_remote(place: Place, variant: str) -> Start:
    """`variant` is "curl", "s3fs" or "s3torchconnector"."""
    shards = place.shards()
    if variant == "curl":
        shards = [f"pipe:curl -s -f '{_signed(url)}'" for url in shards]
    else:
        gopen_schemes["s3"] = {"s3fs": _with_s3fs, "s3torchconnector": _with_s3torchconnector}[variant](shards)
    dataset = wds.WebDataset(shards, shardshuffle=len(shards)).shuffle(BUFFER)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(tensors, int)
    loader = wds.WebLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


def _signed(url: str) -> str:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return boto3.client("s3").generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})


def _with_s3fs(_: list[str]) -> Callable[..., Any]:
    return lambda url, mode, *_args, **_named: fsspec.open(url, mode).open()


def _with_s3torchconnector(shards: list[str]) -> Callable[..., Any]:
    objects = S3MapDataset.from_objects(  # connects when it is first asked for an object, so in the worker
        shards,
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    return lambda url, *_args, **_named: objects[shards.index(url)]

"""A store that is full: told so by a clear error, nothing is lost, deletes work, and there is room again.

full.py fill|look|more|inside|room NOTES
"""

import json
import sys

from botocore.exceptions import ClientError

from common import client, keys, noise, read, refused

step, notes = sys.argv[1], sys.argv[2]
s3 = client()
SIZES = [100, 5_000, 70_000, 700_000]


def fill(prefix):
    """Stores objects until there is no room: their sizes, by key."""
    stored, at = {}, 0
    # What is large finds no room first; then what is smaller.
    for size in sorted(SIZES, reverse=True):
        while True:
            key, at = f"{prefix}/{at}", at + 1
            try:
                s3.put_object(Bucket="demo", Key=key, Body=noise(size, key))
            except ClientError as error:
                code, status = error.response["Error"]["Code"], error.response["ResponseMetadata"]["HTTPStatusCode"]
                assert (code, status) == ("InsufficientStorage", 507), error
                assert "no space is left" in error.response["Error"]["Message"], error
                break
            stored[key] = size
            # Small ones would take long to fill it all.
            if size < 50_000 and at % 500 == 0:
                break
    return stored


def look(stored):
    assert sorted(keys(s3.get_paginator("list_objects_v2").paginate(Bucket="demo"))) == sorted(stored)
    for key, size in stored.items():
        assert read(s3, "demo", key) == noise(size, key), key


if step == "fill":
    upload = s3.create_multipart_upload(Bucket="demo", Key="parts")["UploadId"]
    stored = fill("first")
    assert sum(stored.values()) > 20 << 20, f"{len(stored)} objects of {sum(stored.values())} bytes fit"
    look(stored)
    refused("InsufficientStorage", s3.put_object, Bucket="demo", Key="large", Body=noise(9 << 20), status=507)
    part = dict(Bucket="demo", Key="parts", UploadId=upload, PartNumber=1)
    refused("InsufficientStorage", s3.upload_part, Body=noise(9 << 20), status=507, **part)
    s3.abort_multipart_upload(Bucket="demo", Key="parts", UploadId=upload)
    with open(notes, "w") as file:
        json.dump(stored, file)
else:
    with open(notes) as file:
        stored = json.load(file)
    look(stored)
if step == "more":
    # Room came from elsewhere.
    s3.put_object(Bucket="demo", Key="more", Body=noise(3 << 20, "more"))
    assert read(s3, "demo", "more") == noise(3 << 20, "more")
    s3.delete_object(Bucket="demo", Key="more")
if step == "inside":
    # Others have all that the store has not: what is deleted is room for as much again, at once and whatever its size.
    gone = {key: size for key, size in list(stored.items())[::2]}
    for key in gone:
        s3.delete_object(Bucket="demo", Key=key)
    stored = {key: size for key, size in stored.items() if key not in gone}
    wanted, again = sum(gone.values()) * 2 // 3, 0
    for at, size in enumerate(gone.values()):
        if again + size > wanted:
            break
        s3.put_object(Bucket="demo", Key=f"inside/{at}", Body=noise(size, f"inside/{at}"))
        stored[f"inside/{at}"], again = size, again + size
    look(stored)
    with open(notes, "w") as file:
        json.dump(stored, file)
if step == "room":
    for key in list(stored):
        s3.delete_object(Bucket="demo", Key=key)
    look({})
    again = fill("again")
    assert sum(again.values()) * 2 > sum(stored.values()), "half of what fitted does not fit again"
    look(again)

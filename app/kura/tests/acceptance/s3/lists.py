"""Lists: order, prefixes, delimiters, pages, and keys of every byte that may be in one."""

import concurrent.futures
import os

from common import client, keys, refused

s3 = client(max_pool_connections=16)
COUNT = int(os.environ.get("KURA_KEYS", "10000"))


def put(key):
    s3.put_object(Bucket="demo", Key=key, Body=b"")


def page(**more):
    found = s3.list_objects_v2(Bucket="demo", **more)
    prefixes = [prefix["Prefix"] for prefix in found.get("CommonPrefixes", [])]
    return keys([found]), prefixes, found


# Many keys under one prefix, and few beside it.
many = [f"many/{number:06}" for number in range(COUNT)]
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    list(pool.map(put, many))
few = ["a", "b/1", "b/2", "b/c/3", "many", "manya", "z"]
for key in few:
    put(key)
every = sorted(few + many)
for version in ["list_objects", "list_objects_v2"]:
    found = keys(s3.get_paginator(version).paginate(Bucket="demo"))
    assert found == every, f"{version}: {len(found)} keys instead of {len(every)}"
    found = keys(s3.get_paginator(version).paginate(Bucket="demo", Prefix="many/", PaginationConfig={"PageSize": 777}))
    assert found == many, f"{version}: {len(found)} keys"

# Delimiters: each prefix once, whatever the size of the pages.
for size in [1, 2, 3, 1000]:
    for version in ["list_objects", "list_objects_v2"]:
        pages = list(s3.get_paginator(version).paginate(Bucket="demo", Delimiter="/", PaginationConfig={"PageSize": size}))
        prefixes = [prefix["Prefix"] for page in pages for prefix in page.get("CommonPrefixes", [])]
        assert prefixes == ["b/", "many/"], (version, size, prefixes)
        assert keys(pages) == ["a", "many", "manya", "z"], (version, size, keys(pages))
assert page(Delimiter="/", Prefix="b/")[:2] == (["b/1", "b/2"], ["b/c/"])
assert page(Delimiter="an")[:2] == (["a", "b/1", "b/2", "b/c/3", "z"], ["man"])
assert page(Prefix="nothing")[:2] == ([], [])

# Where a page begins and ends.
assert page(StartAfter="manya")[:2] == (["z"], [])
assert page(StartAfter="b/1", Delimiter="/", MaxKeys=1)[:2] == ([], ["b/"])
found = page(MaxKeys=0)[2]
assert found["KeyCount"] == 0 and not found["IsTruncated"], found
assert page(MaxKeys=5000)[2]["MaxKeys"] == 1000
assert page(FetchOwner=True, MaxKeys=1)[2]["Contents"][0]["Owner"]["ID"]
refused("InvalidArgument", s3.list_objects_v2, Bucket="demo", MaxKeys=-1)
refused("InvalidArgument", s3.list_objects_v2, Bucket="demo", ContinuationToken="never given")

# Deleting them all.
for start in range(0, len(every), 1000):
    s3.delete_objects(Bucket="demo", Delete={"Objects": [{"Key": key} for key in every[start : start + 1000]], "Quiet": True})
assert page()[:2] == ([], [])

# Every character that a key may have: of the controls, XML can name none, which is why lists are URL-encoded.
odd = [f"odd/{chr(code)}x" for code in range(1, 128)]
odd += ["odd/ü/ßé", "odd/日本語", "odd/🦀", "odd//", "odd/./..", "odd/a+b c%20%2F", "odd/\u0301", "x" * 1024, "é" * 512]
for key in odd:
    s3.put_object(Bucket="demo", Key=key, Body=key.encode())
found = keys(s3.get_paginator("list_objects_v2").paginate(Bucket="demo", PaginationConfig={"PageSize": 10}))
assert found == sorted(odd, key=str.encode), set(odd) ^ set(found)
for key in odd:
    assert s3.get_object(Bucket="demo", Key=key)["Body"].read() == key.encode(), repr(key)
    s3.delete_object(Bucket="demo", Key=key)
assert page()[0] == []
for key in ["y" * 1025, "é" * 513]:
    refused("KeyTooLongError", s3.put_object, Bucket="demo", Key=key, Body=b"", status=400)

"""Objects that are read again: what comes from memory is what was put last."""

import sys

from common import client, noise, read, refused

s3 = client()
SIZE = 3_000_001

if sys.argv[1] == "fill":
    for seed in range(3):
        s3.put_object(Bucket="demo", Key="a", Body=noise(SIZE, seed))
        for _ in range(3):
            assert read(s3, "demo", "a") == noise(SIZE, seed), seed
        part = read(s3, "demo", "a", Range="bytes=1000000-2500000")
        assert part == noise(SIZE, seed)[1_000_000:2_500_001]
    s3.copy_object(Bucket="demo", Key="b", CopySource="demo/a")
    s3.put_object(Bucket="demo", Key="a", Body=noise(SIZE, 9))
    assert read(s3, "demo", "b") == noise(SIZE, 2)
    s3.delete_object(Bucket="demo", Key="b")
    refused("NoSuchKey", s3.get_object, Bucket="demo", Key="b", status=404)

assert read(s3, "demo", "a") == noise(SIZE, 9)

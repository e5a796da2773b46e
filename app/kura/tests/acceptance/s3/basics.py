"""Buckets and objects: stored, read, listed, deleted."""

import datetime

from common import client, keys, noise, read, refused

s3 = client()

# Buckets.
assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["demo"]
s3.create_bucket(Bucket="first")
refused("BucketAlreadyOwnedByYou", s3.create_bucket, Bucket="first", status=409)
assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["demo", "first"]
s3.head_bucket(Bucket="first")
refused("404", s3.head_bucket, Bucket="absent", status=404)
assert s3.get_bucket_location(Bucket="first")["LocationConstraint"] is None
for call in [s3.list_objects_v2, s3.delete_bucket, s3.get_bucket_location]:
    refused("NoSuchBucket", call, Bucket="absent", status=404)
refused("NoSuchBucket", s3.put_object, Bucket="absent", Key="a", Body=b"")

# Objects of every size: in one piece, in many, and none.
for size in [0, 1, 4096, 65_537, 1 << 20, (1 << 20) + 1, 5_000_001, 17 << 20]:
    body = noise(size)
    tag = s3.put_object(Bucket="first", Key=f"size/{size}", Body=body)["ETag"]
    head = s3.head_object(Bucket="first", Key=f"size/{size}")
    assert head["ContentLength"] == size and head["ETag"] == tag, head
    assert abs(head["LastModified"] - datetime.datetime.now(datetime.timezone.utc)).total_seconds() < 60
    assert read(s3, "first", f"size/{size}") == body, f"{size} bytes came back otherwise"

# Ranges.
body = noise(5_000_001)
for asked, start, end in [
    ("bytes=0-0", 0, 1),
    ("bytes=100-199", 100, 200),
    ("bytes=1048570-1048590", 1048570, 1048591),
    ("bytes=5000000-", 5_000_000, 5_000_001),
    ("bytes=-5", 4_999_996, 5_000_001),
    ("bytes=4999990-9999999", 4_999_990, 5_000_001),
]:
    found = s3.get_object(Bucket="first", Key="size/5000001", Range=asked)
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert found["ContentRange"] == f"bytes {start}-{end - 1}/5000001", found["ContentRange"]
    assert found["Body"].read() == body[start:end], asked
refused("InvalidRange", s3.get_object, Bucket="first", Key="size/5000001", Range="bytes=5000001-", status=416)

# Headers and metadata.
kept = dict(
    ContentType="text/plain; charset=utf-8",
    CacheControl="max-age=60",
    ContentDisposition='attachment; filename="a.txt"',
    ContentEncoding="identity",
    ContentLanguage="de",
    WebsiteRedirectLocation="/elsewhere",
    Metadata={"colour": "blue", "x": "1"},
)
expires = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
s3.put_object(Bucket="first", Key="headers", Body=b"text", Expires=expires, **kept)
for found in [s3.head_object(Bucket="first", Key="headers"), s3.get_object(Bucket="first", Key="headers")]:
    assert {name: found[name] for name in kept} == kept, found
    assert found["Expires"] == expires, found
found = s3.get_object(Bucket="first", Key="headers", ResponseContentType="image/png")
assert found["ContentType"] == "image/png"
refused("MetadataTooLarge", s3.put_object, Bucket="first", Key="a", Metadata={"a": "b" * 2048})

# Conditions.
tag = s3.head_object(Bucket="first", Key="headers")["ETag"]
modified = s3.head_object(Bucket="first", Key="headers")["LastModified"]
later, sooner = modified + datetime.timedelta(hours=1), modified - datetime.timedelta(hours=1)
s3.get_object(Bucket="first", Key="headers", IfMatch=tag)
s3.get_object(Bucket="first", Key="headers", IfNoneMatch='"other"')
s3.get_object(Bucket="first", Key="headers", IfModifiedSince=sooner)
s3.get_object(Bucket="first", Key="headers", IfUnmodifiedSince=modified)
refused("PreconditionFailed", s3.get_object, Bucket="first", Key="headers", IfMatch='"other"', status=412)
refused("PreconditionFailed", s3.get_object, Bucket="first", Key="headers", IfUnmodifiedSince=sooner, status=412)
refused("304", s3.get_object, Bucket="first", Key="headers", IfNoneMatch=tag, status=304)
refused("304", s3.get_object, Bucket="first", Key="headers", IfModifiedSince=later, status=304)
refused("304", s3.head_object, Bucket="first", Key="headers", IfNoneMatch=tag, status=304)

# Absent ones.
refused("NoSuchKey", s3.get_object, Bucket="first", Key="absent", status=404)
refused("404", s3.head_object, Bucket="first", Key="absent", status=404)
s3.delete_object(Bucket="first", Key="absent")

# Deleting.
s3.delete_object(Bucket="first", Key="headers")
refused("NoSuchKey", s3.get_object, Bucket="first", Key="headers")
refused("BucketNotEmpty", s3.delete_bucket, Bucket="first", status=409)
left = keys(s3.get_paginator("list_objects_v2").paginate(Bucket="first"))
answer = s3.delete_objects(
    Bucket="first", Delete={"Objects": [{"Key": key} for key in left] + [{"Key": "absent"}, {"Key": "a", "VersionId": "x"}]}
)
assert sorted(found["Key"] for found in answer["Deleted"]) == sorted(left + ["absent"]), answer
assert [(found["Key"], found["Code"]) for found in answer["Errors"]] == [("a", "InvalidArgument")], answer
s3.delete_bucket(Bucket="first")
assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["demo"]

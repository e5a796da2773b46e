"""Versions, delete markers and tags."""

from common import client, read, refused

s3 = client()
BUCKET = "demo"


def versions(**more):
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET, **more)
    return [found for page in pages for found in page.get("Versions", [])], [found for page in pages for found in page.get("DeleteMarkers", [])]


assert "Status" not in s3.get_bucket_versioning(Bucket=BUCKET)
s3.put_object(Bucket=BUCKET, Key="a", Body=b"0")
assert "VersionId" not in s3.head_object(Bucket=BUCKET, Key="a")

s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
one = s3.put_object(Bucket=BUCKET, Key="a", Body=b"1")["VersionId"]
two = s3.put_object(Bucket=BUCKET, Key="a", Body=b"2")["VersionId"]
assert len({one, two, "null"}) == 3
assert read(s3, BUCKET, "a") == b"2"
for version, body in [("null", b"0"), (one, b"1"), (two, b"2")]:
    found = s3.get_object(Bucket=BUCKET, Key="a", VersionId=version)
    assert found["Body"].read() == body and found["VersionId"] == version
found, markers = versions()
assert [(version["VersionId"], version["IsLatest"]) for version in found] == [(two, True), (one, False), ("null", False)]
assert markers == []

# A delete marker hides, and goes.
answer = s3.delete_object(Bucket=BUCKET, Key="a")
marker = answer["VersionId"]
assert answer["DeleteMarker"]
answer = refused("NoSuchKey", s3.get_object, Bucket=BUCKET, Key="a", status=404)
assert answer["ResponseMetadata"]["HTTPHeaders"]["x-amz-delete-marker"] == "true"
refused("MethodNotAllowed", s3.get_object, Bucket=BUCKET, Key="a", VersionId=marker, status=405)
assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)
assert [(found["VersionId"], found["IsLatest"]) for found in versions()[1]] == [(marker, True)]
answer = s3.delete_object(Bucket=BUCKET, Key="a", VersionId=marker)
assert answer["DeleteMarker"] and answer["VersionId"] == marker
assert read(s3, BUCKET, "a") == b"2"

# A version is deleted for good; the one before is the newest then.
s3.delete_object(Bucket=BUCKET, Key="a", VersionId=two)
assert read(s3, BUCKET, "a") == b"1"
refused("NoSuchVersion", s3.get_object, Bucket=BUCKET, Key="a", VersionId=two, status=404)
refused("InvalidArgument", s3.get_object, Bucket=BUCKET, Key="a", VersionId="nonsense", status=400)

# Suspended: a put replaces the version null only.
s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
assert s3.put_object(Bucket=BUCKET, Key="a", Body=b"3")["VersionId"] == "null"
assert s3.put_object(Bucket=BUCKET, Key="a", Body=b"4")["VersionId"] == "null"
assert [(found["VersionId"], found["IsLatest"]) for found in versions()[0]] == [("null", True), (one, False)]
answer = s3.delete_object(Bucket=BUCKET, Key="a")
assert answer["DeleteMarker"] and answer["VersionId"] == "null"
assert [found["VersionId"] for found in versions()[0]] == [one]

# Pages of versions.
s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
for key in ["b", "c/1", "c/2"]:
    for body in [b"1", b"2", b"3"]:
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
every = [(found["Key"], found["VersionId"]) for found in versions()[0]]
assert len(every) == 10
for size in [1, 2, 3, 4]:
    found = [(version["Key"], version["VersionId"]) for version in versions(PaginationConfig={"PageSize": size})[0]]
    assert found == every, (size, found)
page = s3.list_object_versions(Bucket=BUCKET, Delimiter="/", Prefix="")
assert [prefix["Prefix"] for prefix in page["CommonPrefixes"]] == ["c/"]

# Copies of versions, and many deletions at once.
oldest = [version for key, version in every if key == "b"][-1]
copied = s3.copy_object(Bucket=BUCKET, Key="d", CopySource={"Bucket": BUCKET, "Key": "b", "VersionId": oldest})
assert copied["CopySourceVersionId"] == oldest and read(s3, BUCKET, "d") == b"1"
answer = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "b"}, {"Key": "b", "VersionId": oldest}]})
assert sorted("DeleteMarker" in found for found in answer["Deleted"]) == [False, True], answer

# Tags, of one version.
tags = [{"Key": "colour", "Value": "blue & green"}, {"Key": "ü", "Value": ""}]
s3.put_object(Bucket=BUCKET, Key="t", Body=b"", Tagging="a=b&c=d+e")
assert s3.get_object_tagging(Bucket=BUCKET, Key="t")["TagSet"] == [{"Key": "a", "Value": "b"}, {"Key": "c", "Value": "d e"}]
version = s3.put_object_tagging(Bucket=BUCKET, Key="t", Tagging={"TagSet": tags})["VersionId"]
assert s3.get_object_tagging(Bucket=BUCKET, Key="t", VersionId=version)["TagSet"] == tags
assert s3.get_object(Bucket=BUCKET, Key="t")["TagCount"] == 2
s3.delete_object_tagging(Bucket=BUCKET, Key="t")
assert s3.get_object_tagging(Bucket=BUCKET, Key="t")["TagSet"] == []
many = [{"Key": str(number), "Value": ""} for number in range(11)]
refused("InvalidTag", s3.put_object_tagging, Bucket=BUCKET, Key="t", Tagging={"TagSet": many})
refused("NoSuchKey", s3.put_object_tagging, Bucket=BUCKET, Key="absent", Tagging={"TagSet": tags})
refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=BUCKET)
s3.put_bucket_tagging(Bucket=BUCKET, Tagging={"TagSet": tags})
assert s3.get_bucket_tagging(Bucket=BUCKET)["TagSet"] == tags
s3.delete_bucket_tagging(Bucket=BUCKET)
refused("NoSuchTagSet", s3.get_bucket_tagging, Bucket=BUCKET)

# An emptied bucket can go.
refused("BucketNotEmpty", s3.delete_bucket, Bucket=BUCKET)
left = [{"Key": found["Key"], "VersionId": found["VersionId"]} for kind in versions() for found in kind]
assert "Errors" not in s3.delete_objects(Bucket=BUCKET, Delete={"Objects": left})
s3.delete_bucket(Bucket=BUCKET)

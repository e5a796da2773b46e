"""Buckets as they were: `snapshots.py before|after|rolled OLD_ID OLD_SECRET NEW_ID NEW_SECRET`, in this order. A snapshot
v1 is made between the first two, and rolled back to before the last; the old key is revoked after the snapshot, the new
one is made after it."""

import sys

import boto3

from common import URL, anonymous, client, keys, noise, read, refused

LARGE = 9_000_000


def before(s3):
    s3.create_bucket(Bucket="doomed")
    s3.put_object(Bucket="doomed", Key="k", Body=b"was here")
    s3.put_object(Bucket="demo", Key="a", Body=b"old", Metadata={"of": "then"}, Tagging="t=1")
    s3.put_object(Bucket="demo", Key="large", Body=noise(LARGE, 1))
    s3.put_object(Bucket="demo", Key="gone/1", Body=b"one")
    s3.put_bucket_versioning(Bucket="demo", VersioningConfiguration={"Status": "Enabled"})
    s3.put_object(Bucket="demo", Key="versions", Body=b"first")
    s3.put_object(Bucket="demo", Key="versions", Body=b"second")
    policy = '{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::demo/*"}]}'
    s3.put_bucket_policy(Bucket="demo", Policy=policy)
    assert read(anonymous(), "demo", "a") == b"old"
    s3.create_multipart_upload(Bucket="demo", Key="unfinished")


def after(s3):
    s3.delete_bucket_policy(Bucket="demo")
    s3.delete_object(Bucket="doomed", Key="k")
    s3.delete_bucket(Bucket="doomed")
    s3.put_object(Bucket="demo", Key="a", Body=b"new")
    s3.put_object(Bucket="demo", Key="large", Body=noise(LARGE, 2))
    s3.put_object(Bucket="demo", Key="added", Body=b"since")
    s3.delete_object(Bucket="demo", Key="gone/1")
    then = "demo.at.v1"
    # What was, is read in every way.
    assert read(s3, then, "a") == b"old"
    assert read(s3, then, "large") == noise(LARGE, 1)
    assert read(s3, then, "large", Range="bytes=4000000-4999999") == noise(LARGE, 1)[4_000_000:5_000_000]
    head = s3.head_object(Bucket=then, Key="a")
    assert head["Metadata"] == {"of": "then"} and head["ContentLength"] == 3, head
    assert s3.get_object_tagging(Bucket=then, Key="a")["TagSet"] == [{"Key": "t", "Value": "1"}]
    listed = ["a", "gone/1", "large", "versions"]
    assert keys(s3.get_paginator("list_objects_v2").paginate(Bucket=then, PaginationConfig={"PageSize": 2})) == listed
    assert keys(s3.get_paginator("list_objects").paginate(Bucket=then)) == listed
    found = s3.list_object_versions(Bucket=then, Prefix="versions")["Versions"]
    assert [read(s3, then, "versions", VersionId=version["VersionId"]) for version in found] == [b"second", b"first"]
    assert s3.get_bucket_versioning(Bucket=then)["Status"] == "Enabled"
    s3.head_bucket(Bucket=then)
    assert read(s3, "doomed.at.v1", "k") == b"was here"
    link = s3.generate_presigned_url("get_object", Params={"Bucket": then, "Key": "a"})
    assert boto3.session.botocore.httpsession.URLLib3Session().send(
        boto3.session.botocore.awsrequest.AWSRequest("GET", link).prepare()
    ).content == b"old"
    # What is today is another matter.
    assert read(s3, "demo", "a") == b"new" and read(s3, "demo", "large") == noise(LARGE, 2)
    assert then not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    # Single objects come back by a copy.
    s3.copy_object(Bucket="demo", Key="back", CopySource={"Bucket": then, "Key": "gone/1"})
    assert read(s3, "demo", "back") == b"one"
    upload = s3.create_multipart_upload(Bucket="demo", Key="parts")["UploadId"]
    part = s3.upload_part_copy(
        Bucket="demo", Key="parts", UploadId=upload, PartNumber=1, CopySource={"Bucket": then, "Key": "large"}
    )["CopyPartResult"]["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    s3.complete_multipart_upload(Bucket="demo", Key="parts", UploadId=upload, MultipartUpload=parts)
    assert read(s3, "demo", "parts") == noise(LARGE, 1)
    # Nothing changes what was.
    denied = "AccessDenied"
    refused(denied, s3.put_object, Bucket=then, Key="x", Body=b"x", status=403)
    refused(denied, s3.put_object, Bucket=then, Key="x", Body=noise(3_000_000), status=403)
    refused(denied, s3.delete_object, Bucket=then, Key="a", status=403)
    refused(denied, s3.delete_objects, Bucket=then, Delete={"Objects": [{"Key": "a"}]}, status=403)
    refused(denied, s3.copy_object, Bucket=then, Key="x", CopySource={"Bucket": "demo", "Key": "a"}, status=403)
    refused(denied, s3.create_multipart_upload, Bucket=then, Key="x", status=403)
    refused(denied, s3.put_bucket_versioning, Bucket=then, VersioningConfiguration={"Status": "Enabled"}, status=403)
    refused(denied, s3.create_bucket, Bucket="new.at.v1", status=403)
    refused(denied, s3.delete_bucket, Bucket=then, status=403)
    # Who may read is a matter of today.
    refused(denied, anonymous().get_object, Bucket=then, Key="a", status=403)
    refused("NoSuchBucket", s3.list_objects_v2, Bucket="demo.at.v2", status=404)
    refused("NoSuchBucket", s3.list_objects_v2, Bucket="never.at.v1", status=404)
    refused("NoSuchKey", s3.get_object, Bucket=then, Key="added", status=404)


def rolled(s3):
    assert read(s3, "demo", "a") == b"old" and read(s3, "demo", "large") == noise(LARGE, 1)
    assert read(s3, "doomed", "k") == b"was here"
    assert read(anonymous(), "demo", "a") == b"old"
    assert keys([s3.list_objects_v2(Bucket="demo")]) == ["a", "gone/1", "large", "versions"]
    assert [upload["Key"] for upload in s3.list_multipart_uploads(Bucket="demo")["Uploads"]] == ["unfinished"]
    s3.put_object(Bucket="demo", Key="after", Body=noise(LARGE, 3))
    assert read(s3, "demo", "after") == noise(LARGE, 3)
    s3.delete_object(Bucket="demo", Key="after")
    s3.delete_object(Bucket="demo", Key="after", VersionId=s3.list_object_versions(Bucket="demo", Prefix="after")["DeleteMarkers"][0]["VersionId"])
    s3.delete_object(Bucket="demo", Key="after", VersionId=s3.list_object_versions(Bucket="demo", Prefix="after")["Versions"][0]["VersionId"])


step, old_id, old_secret, new_id, new_secret = sys.argv[1:]
if step == "before":
    before(client(old_id, old_secret))
elif step == "after":
    refused("InvalidAccessKeyId", client(old_id, old_secret).list_buckets)
    after(client(new_id, new_secret))
else:
    refused("InvalidAccessKeyId", client(old_id, old_secret).list_buckets)
    rolled(client(new_id, new_secret))

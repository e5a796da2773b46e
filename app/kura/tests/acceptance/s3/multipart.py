"""Uploads in parts, copies, and presigned URLs."""

import base64
import hashlib
import urllib.request
import zlib

from common import client, keys, noise, read, refused

s3 = client()
MIB = 1 << 20


def begin(key, **more):
    return s3.create_multipart_upload(Bucket="demo", Key=key, **more)["UploadId"]


def part(key, upload, number, body, **more):
    answer = s3.upload_part(Bucket="demo", Key=key, UploadId=upload, PartNumber=number, Body=body, **more)
    return {"PartNumber": number, "ETag": answer["ETag"]}


def complete(key, upload, parts, **more):
    return s3.complete_multipart_upload(Bucket="demo", Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **more)


# An upload in parts: out of order, one of them twice, one of them left out.
bodies = [noise(5 * MIB, number) for number in range(3)] + [noise(100, 9)]
upload = begin("big", ContentType="image/png", Metadata={"a": "b"}, Tagging="t=1")
part("big", upload, 2, noise(5 * MIB, 77))
parts = {number: part("big", upload, number, bodies[at]) for at, number in [(2, 7), (1, 2), (3, 9), (0, 1)]}
part("big", upload, 8, b"left out")
listed = s3.list_parts(Bucket="demo", Key="big", UploadId=upload)
assert [(found["PartNumber"], found["Size"]) for found in listed["Parts"]] == [
    (1, 5 * MIB), (2, 5 * MIB), (7, 5 * MIB), (8, 8), (9, 100),
], listed
page = s3.list_parts(Bucket="demo", Key="big", UploadId=upload, MaxParts=2, PartNumberMarker=1)
assert page["IsTruncated"] and [found["PartNumber"] for found in page["Parts"]] == [2, 7] and page["NextPartNumberMarker"] == 7
assert [found["Key"] for found in s3.list_multipart_uploads(Bucket="demo")["Uploads"]] == ["big"]
refused("NoSuchKey", s3.get_object, Bucket="demo", Key="big")

ordered = [parts[1], parts[2], parts[7], parts[9]]
refused("InvalidPartOrder", complete, "big", upload, ordered[::-1])
refused("InvalidPart", complete, "big", upload, [{"PartNumber": 1, "ETag": parts[2]["ETag"]}])
refused("InvalidPart", complete, "big", upload, [{"PartNumber": 3, "ETag": parts[2]["ETag"]}])
refused("EntityTooSmall", complete, "big", upload, [parts[9], {"PartNumber": 10, "ETag": parts[2]["ETag"]}][:1] + [part("big", upload, 10, b"x")])
answer = complete("big", upload, ordered)
digest = hashlib.md5(b"".join(hashlib.md5(body).digest() for body in bodies)).hexdigest()
assert answer["ETag"] == f'"{digest}-4"', answer
found = s3.get_object(Bucket="demo", Key="big")
assert found["Body"].read() == b"".join(bodies)
assert found["ContentType"] == "image/png" and found["Metadata"] == {"a": "b"} and found["TagCount"] == 1
assert read(s3, "demo", "big", Range=f"bytes={5 * MIB - 10}-{5 * MIB + 9}") == b"".join(bodies)[5 * MIB - 10 : 5 * MIB + 10]
attributes = s3.get_object_attributes(Bucket="demo", Key="big", ObjectAttributes=["ETag", "ObjectSize", "ObjectParts"])
assert attributes["ObjectSize"] == 15 * MIB + 100 and attributes["ObjectParts"]["TotalPartsCount"] == 4, attributes
# By its parts, in their order.
for number, body in enumerate(bodies, 1):
    found = s3.get_object(Bucket="demo", Key="big", PartNumber=number)
    assert found["Body"].read() == body and found["PartsCount"] == 4, number
    assert s3.head_object(Bucket="demo", Key="big", PartNumber=number)["ContentLength"] == len(body), number
refused("InvalidPartNumber", s3.get_object, Bucket="demo", Key="big", PartNumber=5, status=416)

# What is over is over.
# A client that has not heard the answer asks again, and gets the same one.
assert complete("big", upload, ordered)["ETag"] == answer["ETag"]
for call in [lambda: complete("big", upload, ordered[:1]), lambda: part("big", upload, 1, b""), lambda: s3.list_parts(Bucket="demo", Key="big", UploadId=upload)]:
    refused("NoSuchUpload", call)
refused("NoSuchUpload", s3.abort_multipart_upload, Bucket="demo", Key="big", UploadId="nonsense", status=404)
assert "Uploads" not in s3.list_multipart_uploads(Bucket="demo")

# Lists of uploads, in pages, also several of one key; aborted, nothing is left.
begun = {(key, begin(key)) for key in ["a/1", "a/2", "b", "b", "b"]}
listed, more = set(), {}
while True:
    page = s3.list_multipart_uploads(Bucket="demo", MaxUploads=2, **more)
    listed |= {(found["Key"], found["UploadId"]) for found in page["Uploads"]}
    if not page["IsTruncated"]:
        break
    more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
assert listed == begun, listed ^ begun
page = s3.list_multipart_uploads(Bucket="demo", Delimiter="/")
assert [prefix["Prefix"] for prefix in page["CommonPrefixes"]] == ["a/"] and len(page["Uploads"]) == 3, page
refused("NoSuchUpload", client().upload_part, Bucket="demo", Key="other", UploadId=next(iter(begun))[1], PartNumber=1, Body=b"")
refused("InvalidArgument", client().upload_part, Bucket="demo", Key="b", UploadId=next(iter(begun))[1], PartNumber=10001, Body=b"")
for key, upload in begun:
    part(key, upload, 1, b"in vain")
    s3.abort_multipart_upload(Bucket="demo", Key=key, UploadId=upload)
assert "Uploads" not in s3.list_multipart_uploads(Bucket="demo")

# Checksums of parts, and of what they make.
upload = begin("summed", ChecksumAlgorithm="SHA256")
answer = s3.upload_part(Bucket="demo", Key="summed", UploadId=upload, PartNumber=1, Body=b"text", ChecksumAlgorithm="SHA256")
sha = hashlib.sha256(b"text").digest()
assert answer["ChecksumSHA256"] == base64.b64encode(sha).decode()
answer = complete("summed", upload, [{"PartNumber": 1, "ETag": answer["ETag"], "ChecksumSHA256": answer["ChecksumSHA256"]}])
assert answer["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(sha).digest()).decode() + "-1", answer

# Checksums and MD5s that are not the body's leave nothing.
wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
refused("BadDigest", s3.put_object, Bucket="demo", Key="bad", Body=b"text", ContentMD5=wrong, status=400)
refused("InvalidDigest", s3.put_object, Bucket="demo", Key="bad", Body=b"text", ContentMD5="nonsense", status=400)
crc = base64.b64encode(zlib.crc32(b"text").to_bytes(4, "big")).decode()
refused("BadDigest", s3.put_object, Bucket="demo", Key="bad", Body=b"other", ChecksumCRC32=crc, status=400)
refused("NoSuchKey", s3.get_object, Bucket="demo", Key="bad")
for algorithm in ["CRC32", "SHA1", "SHA256"]:
    name = f"Checksum{algorithm}"
    said = s3.put_object(Bucket="demo", Key="good", Body=b"text", ChecksumAlgorithm=algorithm)[name]
    assert s3.get_object(Bucket="demo", Key="good", ChecksumMode="ENABLED")[name] == said
    assert s3.head_object(Bucket="demo", Key="good", ChecksumMode="ENABLED")[name] == said
    assert name not in s3.head_object(Bucket="demo", Key="good")

# Copies.
source = {"Bucket": "demo", "Key": "big"}
s3.create_bucket(Bucket="other")
s3.copy_object(Bucket="other", Key="copy ü", CopySource=source)
found = s3.get_object(Bucket="other", Key="copy ü")
assert found["Body"].read() == b"".join(bodies) and found["ContentType"] == "image/png" and found["Metadata"] == {"a": "b"}
assert s3.get_object_tagging(Bucket="other", Key="copy ü")["TagSet"] == [{"Key": "t", "Value": "1"}]
s3.copy_object(Bucket="other", Key="copy2", CopySource={"Bucket": "other", "Key": "copy ü"}, MetadataDirective="REPLACE", Metadata={"c": "d"})
assert s3.head_object(Bucket="other", Key="copy2")["Metadata"] == {"c": "d"}
refused("InvalidRequest", s3.copy_object, Bucket="demo", Key="big", CopySource=source)
s3.copy_object(Bucket="demo", Key="big", CopySource=source, MetadataDirective="REPLACE", ContentType="text/plain")
assert s3.head_object(Bucket="demo", Key="big")["ContentType"] == "text/plain" and read(s3, "demo", "big") == b"".join(bodies)
refused("NoSuchKey", s3.copy_object, Bucket="demo", Key="x", CopySource={"Bucket": "demo", "Key": "absent"})
refused("NoSuchBucket", s3.copy_object, Bucket="demo", Key="x", CopySource={"Bucket": "absent", "Key": "big"})
refused("PreconditionFailed", s3.copy_object, Bucket="demo", Key="x", CopySource=source, CopySourceIfMatch='"no"')

upload = begin("joined")
tags = []
for number, asked in [(1, f"bytes=0-{6 * MIB - 1}"), (2, f"bytes={6 * MIB}-{6 * MIB + 9}")]:
    answer = s3.upload_part_copy(Bucket="demo", Key="joined", UploadId=upload, PartNumber=number, CopySource=source, CopySourceRange=asked)
    tags.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
refused("InvalidRange", s3.upload_part_copy, Bucket="demo", Key="joined", UploadId=upload, PartNumber=3, CopySource=source, CopySourceRange="bytes=0-99999999")
complete("joined", upload, tags)
assert read(s3, "demo", "joined") == b"".join(bodies)[: 6 * MIB + 10]

# Presigned URLs.
url = s3.generate_presigned_url("put_object", Params={"Bucket": "demo", "Key": "signed"})
urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT"))
url = s3.generate_presigned_url("get_object", Params={"Bucket": "demo", "Key": "signed", "ResponseContentType": "image/gif"})
with urllib.request.urlopen(url) as answer:
    assert answer.read() == b"by url" and answer.headers["Content-Type"] == "image/gif"
for broken in [url.replace("signed", "big"), url[:-1] + ("0" if url[-1] != "0" else "1"), url.replace("image%2Fgif", "image%2Fpng")]:
    try:
        urllib.request.urlopen(broken)
        raise AssertionError(f"{broken} was answered")
    except urllib.error.HTTPError as error:
        assert error.code == 403 and b"SignatureDoesNotMatch" in error.read()

# Deleting a bucket ends its uploads.
begun = s3.create_multipart_upload(Bucket="other", Key="k")["UploadId"]
s3.upload_part(Bucket="other", Key="k", UploadId=begun, PartNumber=1, Body=noise(MIB))
for key in keys([s3.list_objects_v2(Bucket="other")]):
    s3.delete_object(Bucket="other", Key=key)
s3.delete_bucket(Bucket="other")
s3.create_bucket(Bucket="other")
assert "Uploads" not in s3.list_multipart_uploads(Bucket="other")

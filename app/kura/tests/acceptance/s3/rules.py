"""What is set on a bucket: policies, CORS, lifecycle rules, the access list; and what is not supported."""

import datetime
import json
import time
import urllib.error
import urllib.request

from common import URL, anonymous, client, read, refused

s3 = client()
nobody = anonymous()

# Policies: what is public is, and nothing else.
for key in ["pub/a", "private"]:
    s3.put_object(Bucket="demo", Key=key, Body=key.encode())
refused("AccessDenied", nobody.get_object, Bucket="demo", Key="pub/a", status=403)
refused("AccessDenied", nobody.list_buckets, status=403)
refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket="demo", status=404)
statement = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::demo/pub/*"}
policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
s3.put_bucket_policy(Bucket="demo", Policy=policy)
assert s3.get_bucket_policy(Bucket="demo")["Policy"] == policy
assert s3.get_bucket_policy_status(Bucket="demo")["PolicyStatus"]["IsPublic"]
assert read(nobody, "demo", "pub/a") == b"pub/a"
refused("AccessDenied", nobody.get_object, Bucket="demo", Key="private")
refused("AccessDenied", nobody.list_objects_v2, Bucket="demo")
refused("AccessDenied", nobody.put_object, Bucket="demo", Key="pub/b", Body=b"")
# Where the policy lets nobody delete anything, the list of keys is not even read; where it does, each key is asked about.
doomed = {"Objects": [{"Key": "pub/a"}]}
refused("AccessDenied", nobody.delete_objects, Bucket="demo", Delete=doomed, status=403)
elsewhere = {**statement, "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::demo/scratch/*"}
s3.put_bucket_policy(Bucket="demo", Policy=json.dumps({"Statement": [statement, elsewhere]}))
answer = nobody.delete_objects(Bucket="demo", Delete=doomed)
assert [found["Code"] for found in answer["Errors"]] == ["AccessDenied"], answer
deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": ["arn:aws:s3:::demo", "arn:aws:s3:::demo/*"]}
s3.put_bucket_policy(Bucket="demo", Policy=json.dumps({"Statement": deny}))
refused("AccessDenied", s3.get_object, Bucket="demo", Key="pub/a")
s3.delete_bucket_policy(Bucket="demo")
assert read(s3, "demo", "pub/a") == b"pub/a"
for bad in ["{}", "nonsense", json.dumps({"Statement": [{**statement, "Resource": "arn:aws:s3:::other/*"}]})]:
    refused("MalformedPolicy", s3.put_bucket_policy, Bucket="demo", Policy=bad, status=400)
conditional = json.dumps({"Statement": [{**statement, "Condition": {"Bool": {"aws:SecureTransport": "true"}}}]})
refused("NotImplemented", s3.put_bucket_policy, Bucket="demo", Policy=conditional, status=501)

# Keys that are none.
refused("InvalidAccessKeyId", client(key="KURA0000000000000000").list_buckets, status=403)
refused("SignatureDoesNotMatch", client(secret="wrong").list_buckets, status=403)

# CORS.
refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket="demo", status=404)
rule = {"AllowedMethods": ["GET", "PUT"], "AllowedOrigins": ["https://*.example"], "AllowedHeaders": ["x-amz-*"], "ExposeHeaders": ["ETag"], "MaxAgeSeconds": 60}
s3.put_bucket_cors(Bucket="demo", CORSConfiguration={"CORSRules": [rule]})
assert s3.get_bucket_cors(Bucket="demo")["CORSRules"] == [rule]


def ask(method, url, **headers):
    request = urllib.request.Request(url, method=method, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        return urllib.request.urlopen(request)
    except urllib.error.HTTPError as error:
        return error


asked = dict(Origin="https://a.example", Access_Control_Request_Method="PUT", Access_Control_Request_Headers="x-amz-date")
answer = ask("OPTIONS", f"{URL}/demo/a", **asked)
assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == "https://a.example", answer.headers
assert answer.headers["Access-Control-Max-Age"] == "60" and "PUT" in answer.headers["Access-Control-Allow-Methods"]
for wrong in [{"Origin": "https://evil.org"}, {"Access_Control_Request_Method": "DELETE"}, {"Access_Control_Request_Headers": "range"}]:
    assert ask("OPTIONS", f"{URL}/demo/a", **{**asked, **wrong}).status == 403, wrong
url = s3.generate_presigned_url("get_object", Params={"Bucket": "demo", "Key": "pub/a"})
assert ask("GET", url, Origin="https://a.example").headers["Access-Control-Expose-Headers"] == "ETag"
assert ask("GET", url, Origin="https://evil.org").headers["Access-Control-Allow-Origin"] is None
s3.delete_bucket_cors(Bucket="demo")
assert ask("OPTIONS", f"{URL}/demo/a", **asked).status == 403

# Lifecycle: what is past its date goes, soon after the rule is set; the rest stays.
past = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
for key in ["old/1", "old/2", "new/1"]:
    s3.put_object(Bucket="demo", Key=key, Body=b"", Tagging="keep=no" if key != "old/2" else "keep=yes")
chosen = {"And": {"Prefix": "old/", "Tags": [{"Key": "keep", "Value": "no"}]}}
rules = [
    {"ID": "by date", "Status": "Enabled", "Filter": chosen, "Expiration": {"Date": past}},
    {"ID": "uploads", "Status": "Enabled", "Filter": {"Prefix": ""}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3}},
    {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": "new/"}, "Expiration": {"Date": past}},
]
refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket="demo", status=404)
s3.put_bucket_lifecycle_configuration(Bucket="demo", LifecycleConfiguration={"Rules": rules})
assert s3.get_bucket_lifecycle_configuration(Bucket="demo")["Rules"] == rules
deadline = time.monotonic() + 120
while {"old/1"} & {found["Key"] for found in s3.list_objects_v2(Bucket="demo")["Contents"]}:
    assert time.monotonic() < deadline, "the rule was not followed"
    time.sleep(0.05)
assert {found["Key"] for found in s3.list_objects_v2(Bucket="demo")["Contents"]} == {"old/2", "new/1", "pub/a", "private"}
s3.delete_bucket_lifecycle(Bucket="demo")
move = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}]}
refused("NotImplemented", s3.put_bucket_lifecycle_configuration, Bucket="demo", LifecycleConfiguration={"Rules": [move]})

for nothing in [{"NoncurrentVersionExpiration": {"NewerNoncurrentVersions": 2}}, {"AbortIncompleteMultipartUpload": {}}, {"Expiration": {}}]:
    rule = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, **nothing}
    refused("MalformedXML", s3.put_bucket_lifecycle_configuration, Bucket="demo", LifecycleConfiguration={"Rules": [rule]})

# A version of an object is not the object to a policy, in whatever way it is named.
s3.create_bucket(Bucket="versions-of")
s3.put_bucket_versioning(Bucket="versions-of", VersioningConfiguration={"Status": "Enabled"})
old = s3.put_object(Bucket="versions-of", Key="a", Body=b"secret")["VersionId"]
s3.put_object(Bucket="versions-of", Key="a", Body=b"public")
s3.put_bucket_policy(Bucket="versions-of", Policy=json.dumps({"Statement": {**statement, "Resource": "arn:aws:s3:::versions-of/*"}}))
assert urllib.request.urlopen(f"{URL}/versions-of/a").read() == b"public"
for name in ["versionId", "version%49d", "%76ersionId"]:
    try:
        raise AssertionError(urllib.request.urlopen(f"{URL}/versions-of/a?{name}={old}").read())
    except urllib.error.HTTPError as error:
        assert error.code == 403, error
for found in s3.list_object_versions(Bucket="versions-of")["Versions"]:
    s3.delete_object(Bucket="versions-of", Key="a", VersionId=found["VersionId"])
s3.delete_bucket(Bucket="versions-of")

# A browser's form is refused by name, before anybody looks at its fields.
form = b'--x\r\nContent-Disposition: form-data; name="key"\r\n\r\na\r\n--x--\r\n'
try:
    urllib.request.urlopen(urllib.request.Request(f"{URL}/demo", form, {"Content-Type": "multipart/form-data; boundary=x"}, method="POST"))
    raise AssertionError("a form was taken")
except urllib.error.HTTPError as error:
    assert error.code == 501 and b"HTML form" in error.read(), error

# The access list is the owner's.
for acl in [s3.get_bucket_acl(Bucket="demo"), s3.get_object_acl(Bucket="demo", Key="private")]:
    assert [grant["Permission"] for grant in acl["Grants"]] == ["FULL_CONTROL"]
s3.put_bucket_acl(Bucket="demo", ACL="private")

# What is not supported says so, and does nothing.
encryption = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
for call, more in [
    (s3.put_object, dict(Key="x", Body=b"", ACL="public-read")),
    (s3.put_object, dict(Key="x", Body=b"", ServerSideEncryption="AES256")),
    (s3.put_object, dict(Key="x", Body=b"", StorageClass="GLACIER")),
    (s3.put_bucket_acl, dict(ACL="public-read")),
    (s3.put_bucket_encryption, dict(ServerSideEncryptionConfiguration=encryption)),
    (s3.get_bucket_website, {}),
    (s3.get_object_lock_configuration, {}),
    (s3.get_object_torrent, dict(Key="private")),
    (s3.select_object_content, dict(Key="private", Expression="select 1", ExpressionType="SQL", InputSerialization={"CSV": {}}, OutputSerialization={"CSV": {}})),
]:
    refused("NotImplemented", call, Bucket="demo", **more, status=501)
refused("NoSuchKey", s3.get_object, Bucket="demo", Key="x")

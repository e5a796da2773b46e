"""What a signature covers: all that changes what is done, in version 4, for a week at most."""

import base64
import urllib.error
import urllib.request
import zlib

import botocore.session
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from common import URL, client, noise, read, refused

s3 = client()


def ask(method, url, body=None, **headers):
    """The status of an answer, and the answer."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method, headers=headers)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


s3.put_object(Bucket="demo", Key="secret", Body=b"secret")

# Whoever has a URL for a put stores what they like, and nothing else that the key's owner might.
url = s3.generate_presigned_url("put_object", Params={"Bucket": "demo", "Key": "signed"})
assert ask("PUT", url, b"mine", x_amz_content_sha256="UNSIGNED-PAYLOAD")[0] == 200
for added in [{"x_amz_copy_source": "/demo/secret"}, {"x_amz_tagging": "a=b"}, {"x_amz_meta_a": "b"}]:
    status, text = ask("PUT", url, b"", **added)
    assert status == 403 and "AccessDenied" in text and "headers present in the request which were not signed" in text, text
assert read(s3, "demo", "signed") == b"mine"
# What was signed is taken.
url = s3.generate_presigned_url("copy_object", Params={"Bucket": "demo", "Key": "signed", "CopySource": "demo/secret"})
assert ask("PUT", url, b"", x_amz_copy_source="demo/secret")[0] == 200
assert read(s3, "demo", "signed") == b"secret"

# The same of a signature in the head.
request = AWSRequest(method="PUT", url=f"{URL}/demo/signed", data=b"mine")
S3SigV4Auth(botocore.session.get_session().get_credentials(), "s3", "us-east-1").add_auth(request)
signed = dict(request.headers.items())
assert ask("PUT", request.url, b"mine", **signed)[0] == 200
assert ask("PUT", request.url, b"mine", **signed, x_amz_copy_source="/demo/secret")[0] == 403
assert read(s3, "demo", "signed") == b"mine"

# Signatures of version 2 were good for ever.
old = client(signature_version="s3")
refused("InvalidRequest", old.get_object, Bucket="demo", Key="secret", status=400)
url = old.generate_presigned_url("get_object", Params={"Bucket": "demo", "Key": "secret"})
assert "Signature=" in url and "X-Amz" not in url, url
status, text = ask("GET", url)
assert status == 400 and "InvalidRequest" in text and "version 4" in text, text

# A URL is good for a week.
url = s3.generate_presigned_url("get_object", Params={"Bucket": "demo", "Key": "secret"}, ExpiresIn=604_800)
assert ask("GET", url) == (200, "secret")
url = s3.generate_presigned_url("get_object", Params={"Bucket": "demo", "Key": "secret"}, ExpiresIn=604_801)
status, text = ask("GET", url)
assert status == 400 and "AuthorizationQueryParametersError" in text, text

# Bodies in chunks, of which the server has only so much in memory: a large one without a signature of its own is taken in pieces, and one
# with a signature is refused.


class Chunked(S3SigV4Auth):
    """Signs the head of a request whose body is in chunks of some kind."""

    kind = ""

    def payload(self, request):
        return self.kind


def put_in_chunks(kind, body, size, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    headers = {"x-amz-decoded-content-length": str(size), "content-encoding": "aws-chunked", **headers}
    request = AWSRequest(method="PUT", url=f"{URL}/demo/chunked", data=body, headers=headers)
    auth = Chunked(botocore.session.get_session().get_credentials(), "s3", "us-east-1")
    auth.kind = kind
    auth.add_auth(request)
    return ask("PUT", request.url, body, **dict(request.headers.items()))


large = noise(3_000_000, "chunked")
crc = base64.b64encode(zlib.crc32(large).to_bytes(4, "big"))
body = b"%x\r\n" % len(large) + large + b"\r\n0\r\nx-amz-checksum-crc32:" + crc + b"\r\n\r\n"
status, text = put_in_chunks("STREAMING-UNSIGNED-PAYLOAD-TRAILER", body, len(large), x_amz_trailer="x-amz-checksum-crc32")
assert status == 200, text
assert read(s3, "demo", "chunked") == large
body = b"%x;chunk-signature=" % len(large) + b"0" * 64 + b"\r\n" + large + b"\r\n"
status, text = put_in_chunks("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", body, len(large))
assert status == 400 and "InvalidRequest" in text and "a chunk with a signature has at most" in text, text

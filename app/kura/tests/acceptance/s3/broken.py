"""Bodies that end early, and connections that are cut, leave nothing; a refused body does not spoil its connection."""

import http.client
import io
import socket
import time
from urllib.parse import urlsplit

from common import URL, client, keys, noise, read

s3 = client()
host, port = urlsplit(URL).hostname, urlsplit(URL).port


def signed(operation, **params):
    """Path and query of a presigned URL."""
    url = urlsplit(s3.generate_presigned_url(operation, Params={"Bucket": "demo", **params}))
    return f"{url.path}?{url.query}"


def send(method, path, length, body, headers=b""):
    """A request whose body is not what it says, on a connection that is left open."""
    link = socket.create_connection((host, port))
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {length}\r\n".encode()
    link.sendall(head + headers + b"\r\n" + body)
    return link


# Half a body, and the connection cut: at once, and after a while; in one piece and in many.
for length, sent in [(100, 50), (100, 0), (200_000, 100_000), (20 << 20, 9 << 20)]:
    for wait in [0, 0.2]:
        link = send("PUT", signed("put_object", Key="half"), length, noise(sent))
        time.sleep(wait)
        link.close()
upload = s3.create_multipart_upload(Bucket="demo", Key="parts")["UploadId"]
link = send("PUT", signed("upload_part", Key="parts", UploadId=upload, PartNumber=1), 9 << 20, noise(6 << 20))
time.sleep(0.2)
link.close()
time.sleep(0.2)
assert keys([s3.list_objects_v2(Bucket="demo")]) == []
assert "Parts" not in s3.list_parts(Bucket="demo", Key="parts", UploadId=upload)
s3.abort_multipart_upload(Bucket="demo", Key="parts", UploadId=upload)
# A reader that goes away in the middle harms nobody.
s3.put_object(Bucket="demo", Key="whole", Body=noise(20 << 20))
for _ in range(5):
    link = send("GET", signed("get_object", Key="whole"), 0, b"")
    link.recv(1000)
    link.close()
assert read(s3, "demo", "whole") == noise(20 << 20)

# Refusals that leave a body unread: what comes next on the connection is answered, or the answer said that it ends.
refusals = [
    ("PUT", signed("upload_part", Key="parts", UploadId=upload, PartNumber=1), 404),
    ("PUT", signed("put_object", Key="b").replace("/demo/", "/nowhere/"), 403),
    ("PUT", signed("put_object", Key="b").replace("Signature=", "Signature=0")[:-1], 403),
]
for method, path, status in refusals:
    for size in [1, 100_000, 3 << 20, 30 << 20]:
        link = http.client.HTTPConnection(host, port, timeout=120)
        try:
            link.request(method, path, body=noise(size))
        except (BrokenPipeError, ConnectionResetError):
            # The answer came before all of the body was taken.
            assert size > 1 << 20, size
        answer = link.getresponse()
        assert answer.status == status and b"<Code>" in answer.read(), (path, size, answer.status)
        if answer.getheader("Connection") == "close":
            assert size > 1 << 20, f"a connection ends over {size} bytes"
            continue
        link.request("GET", signed("get_object", Key="whole"))
        answer = link.getresponse()
        assert answer.status == 200 and answer.read() == noise(20 << 20), (path, size, answer.status)
# A client that waits to be told to go on is refused instead, and the connection ends.
link = send("PUT", refusals[0][1], 5 << 20, b"", b"Expect: 100-continue\r\n")
answer = http.client.HTTPResponse(link)
answer.begin()
assert answer.status == 404 and answer.getheader("Connection") == "close", answer.getheaders()
assert b"NoSuchUpload" in answer.read()

# An empty body that a client waits to be asked for: the next request on that client's connection is answered.
for size in [0, 10, 0, 5 << 20]:
    tag = s3.put_object(Bucket="demo", Key="asked", Body=io.BytesIO(noise(size))).get("ETag")
    assert tag and read(s3, "demo", "asked") == noise(size), (size, tag)

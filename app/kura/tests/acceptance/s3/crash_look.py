"""After a crash: what was acknowledged is there whole, what was under way is there or not, a batch as a whole, and an
upload can be gone on with or is gone.

crash_look.py NOTES
"""

import sys

from botocore.exceptions import ClientError

from common import client, keys, noise, read
from crash_notes import BATCH_KEYS, PART, body, load, save

notes = sys.argv[1]
s3 = client(max_pool_connections=16)
everything = load(notes)
listed = set(keys(s3.get_paginator("list_objects_v2").paginate(Bucket="demo")))
resumed = 0


def found(key, state):
    """Which of the states that a key may be in it is in."""
    content = read(s3, "demo", key) if key in listed else None
    for what in [state["is"], *state["may"]]:
        if content == (None if what is None else body(key, what)):
            return what
    raise AssertionError(f"{key}: {None if content is None else len(content)} bytes, none of {state}")


def go_on(key, state):
    """Goes on with an upload, if it is there."""
    under_way = state["upload"]
    try:
        parts = s3.list_parts(Bucket="demo", Key=key, UploadId=under_way["id"]).get("Parts", [])
    except ClientError as error:
        assert error.response["Error"]["Code"] == "NoSuchUpload", error
        # It was completed, or the key holds what it held before.
        assert state["may"], f"{key}: the upload is gone before it was completed"
        return False
    there = {part["PartNumber"]: part["ETag"] for part in parts}
    for part in under_way["parts"]:
        assert there.get(part["PartNumber"]) == part["ETag"], f"{key}: a part that was stored is not there"
    for number in [1, 2]:
        size, seed = PART if number == 1 else 1000, (key, under_way["generation"], number)
        part = s3.upload_part(
            Bucket="demo", Key=key, UploadId=under_way["id"], PartNumber=number, Body=noise(size, seed)
        )
        there[number] = part["ETag"]
    parts = {"Parts": [{"PartNumber": number, "ETag": there[number]} for number in [1, 2]]}
    s3.complete_multipart_upload(Bucket="demo", Key=key, UploadId=under_way["id"], MultipartUpload=parts)
    listed.add(key)
    state.update({"is": ["upload", under_way["generation"]], "may": []})
    return True


for number, states in enumerate(everything):
    for key, state in states.items():
        if state["upload"] and go_on(key, state):
            resumed += 1
        state.update({"is": found(key, state), "may": [], "upload": None})
    batch = [states[f"{number}/batch/{at}"]["is"] for at in range(BATCH_KEYS)]
    assert len({what and what[1] for what in batch}) == 1, f"a batch is there in part: {batch}"
known = {key for states in everything for key in states}
assert listed <= known, f"nobody stored {listed - known}"
# An upload may have begun whose client was not told.
for upload in s3.list_multipart_uploads(Bucket="demo").get("Uploads", []):
    s3.abort_multipart_upload(Bucket="demo", Key=upload["Key"], UploadId=upload["UploadId"])
save(notes, everything)
print(len(listed), "objects are whole,", resumed, "uploads were gone on with")

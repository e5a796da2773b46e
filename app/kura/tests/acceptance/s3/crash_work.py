"""Clients that store, delete and upload until the server dies, and note what they were told: for crash_look.py.

crash_work.py NOTES ROUND
"""

import concurrent.futures
import json
import os
import random
import sys
import urllib.request

from common import client, noise
from crash_notes import BATCH_KEYS, ERRORS, PART, body, load, save

notes, round_ = sys.argv[1], int(sys.argv[2])
ADMIN = os.environ["ADMIN_URL"]
s3 = client(max_pool_connections=16, connect_timeout=5, read_timeout=20)


def stored(answer):
    """What a put was told. A server that dies behind `100 Continue` leaves this client with an answer of nothing."""
    if "ETag" not in answer:
        raise OSError("the answer broke off")
    return answer["ETag"]


def batch(steps):
    """Objects stored together, through the REST door."""
    text = b""
    for key, content in steps:
        step = {"put": {"bucket": "demo", "key": key, "size_bytes": len(content)}}
        text += json.dumps(step).encode() + b"\n" + content
    request = urllib.request.Request(f"{ADMIN}/api/v1/batch", data=text + b'"commit"\n', method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()


def upload(key, state, generation):
    """An upload in parts: what has come so far is noted before the next step."""
    begun = s3.create_multipart_upload(Bucket="demo", Key=key)["UploadId"]
    state["upload"] = {"id": begun, "generation": generation, "parts": []}
    for number in [1, 2]:
        size = PART if number == 1 else 1000
        content = noise(size, (key, generation, number))
        part = s3.upload_part(Bucket="demo", Key=key, UploadId=begun, PartNumber=number, Body=content)
        state["upload"]["parts"].append({"PartNumber": number, "ETag": stored(part)})
    state["may"].append(["upload", generation])
    parts = {"Parts": state["upload"]["parts"]}
    stored(s3.complete_multipart_upload(Bucket="demo", Key=key, UploadId=begun, MultipartUpload=parts))
    state["is"], state["may"], state["upload"] = ["upload", generation], [], None


def work(number, states):
    """One client: its keys are nobody else's. What may be, and what is, for each of them."""
    rng = random.Random(f"{round_}/{number}")
    generation = round_ * 1_000_000
    try:
        while True:
            generation += 1
            choice = rng.random()
            if choice < 0.25:
                keys = [f"{number}/batch/{at}" for at in range(BATCH_KEYS)]
                now = [["put", generation, rng.choice([10, 5_000, 70_000, 300_000])] for _ in keys]
                for key, what in zip(keys, now):
                    states[key]["may"] = [what]
                batch([(key, body(key, what)) for key, what in zip(keys, now)])
                for key, what in zip(keys, now):
                    states[key].update({"is": what, "may": []})
            elif choice < 0.35:
                key = f"{number}/upload"
                upload(key, states[key], generation)
            else:
                key = f"{number}/single/{rng.randrange(8)}"
                what = ["put", generation, rng.choice([0, 10, 5_000, 70_000, 1_500_000])]
                if rng.random() < 0.2:
                    what = None
                states[key]["may"] = [what]
                if what is None:
                    s3.delete_object(Bucket="demo", Key=key)
                else:
                    stored(s3.put_object(Bucket="demo", Key=key, Body=body(key, what)))
                states[key].update({"is": what, "may": []})
    except ERRORS:
        return generation


everything = load(notes)
print("at work", flush=True)
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    done = list(pool.map(lambda number: work(number, everything[number]), range(len(everything))))
save(notes, everything)
print(sum(last - round_ * 1_000_000 for last in done), "changes")

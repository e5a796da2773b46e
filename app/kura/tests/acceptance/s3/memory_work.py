"""Clients of a server that acknowledges in memory: they store until it dies, and note when they were told what.

memory_work.py NOTES ROUND
"""

import concurrent.futures
import json
import sys
import time

from common import client, noise
from crash_notes import ERRORS, MEMORY_SIZES

notes, round_ = sys.argv[1], sys.argv[2]
s3 = client(max_pool_connections=16, connect_timeout=5, read_timeout=20)


def work(number):
    """One client: an object each time, and one that is replaced; when each was acknowledged."""
    told = []
    try:
        while True:
            at = len(told)
            for key in [f"{round_}/{number}/{at}", f"{round_}/{number}/hot"]:
                size = MEMORY_SIZES[at % len(MEMORY_SIZES)]
                if "ETag" not in s3.put_object(Bucket="demo", Key=key, Body=noise(size, (round_, number, at))):
                    return told
            told.append(time.time())
    except ERRORS:
        return told


print("at work", flush=True)
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    done = list(pool.map(work, range(4)))
with open(notes, "w") as file:
    json.dump(done, file)
print(sum(map(len, done)), "objects")

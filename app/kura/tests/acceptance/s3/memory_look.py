"""After a crash of a server that acknowledges in memory: objects are whole or absent, only the newest are absent, and none that was
acknowledged before a moment. Says how many are.

memory_look.py NOTES ROUND CRASHED
"""

import json
import sys

from common import client, keys, noise, read
from crash_notes import MEMORY_SIZES

notes, round_, crashed = sys.argv[1], sys.argv[2], float(sys.argv[3])
# It is durable 0.2 s later and when the disks have flushed: on a busy machine they may take long.
MOMENT_S = 2

s3 = client(max_pool_connections=16)
listed = set(keys(s3.get_paginator("list_objects_v2").paginate(Bucket="demo", Prefix=f"{round_}/")))
with open(notes) as file:
    everything = json.load(file)
lost = 0
for number, told in enumerate(everything):

    def content(at):
        return noise(MEMORY_SIZES[at % len(MEMORY_SIZES)], (round_, number, at))

    there = [f"{round_}/{number}/{at}" in listed for at in range(len(told) + 1)]
    count = sum(there)
    assert all(there[:count]), f"client {number}: not the newest are missing of {there}"
    for at in range(count):
        assert read(s3, "demo", f"{round_}/{number}/{at}") == content(at), f"{number}/{at} is not whole"
    if count > 0:
        # The one that is replaced comes behind the other.
        hot = read(s3, "demo", f"{round_}/{number}/hot") if f"{round_}/{number}/hot" in listed else None
        behind = content(count - 1), content(count - 2) if count > 1 else None
        assert hot in behind, f"client {number}: the object that is replaced is neither the last nor the one before"
    for at in range(count, len(told)):
        lost += 1
        assert told[at] > crashed - MOMENT_S, f"{number}/{at} is missing, {crashed - told[at]} s old"
    assert len(told) > 20, f"client {number} was told of {len(told)} objects"
print(lost)

"""What crash_work.py and crash_look.py share: notes of what each key holds or may hold."""

import collections
import http.client
import json
import os
import urllib.error

import botocore.exceptions

from common import noise

CLIENTS = 8
BATCH_KEYS = 5
PART = 5 << 20
# Of the objects that are acknowledged in memory: in the log, and in extents.
MEMORY_SIZES = [10, 5_000, 70_000, 300_000]
# How a server's death shows itself.
ERRORS = (
    botocore.exceptions.BotoCoreError,
    urllib.error.URLError,
    http.client.HTTPException,
    OSError,
)


def body(key, what):
    """What a key holds."""
    kind, generation, *size = what
    if kind == "upload":
        return noise(PART, (key, generation, 1)) + noise(1000, (key, generation, 2))
    return noise(size[0], (key, generation))


def fresh():
    return {"is": None, "may": [], "upload": None}


def load(path):
    clients = [{} for _ in range(CLIENTS)]
    if os.path.exists(path):
        with open(path) as file:
            clients = json.load(file)
    return [collections.defaultdict(fresh, states) for states in clients]


def save(path, clients):
    with open(path, "w") as file:
        json.dump(clients, file)

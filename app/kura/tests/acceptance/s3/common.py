"""What the scripts beside this one share: a client of the server under test, and ways to say what must hold."""

import hashlib
import os

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

URL = os.environ["S3_URL"]


def client(key=None, secret=None, **config):
    """A client with the given key, or the one that the test was given."""
    config.setdefault("signature_version", "s3v4")
    return boto3.client(
        "s3",
        endpoint_url=URL,
        region_name="us-east-1",
        aws_access_key_id=key or os.environ["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=secret or os.environ["AWS_SECRET_ACCESS_KEY"],
        config=Config(retries={"max_attempts": 0}, s3={"addressing_style": "path"}, **config),
    )


def anonymous():
    """A client without a key."""
    return client(signature_version=botocore.UNSIGNED)


def refused(code, call, *args, status=None, **kwargs):
    """Calls, and fails unless it is refused with this code."""
    try:
        call(*args, **kwargs)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{found} instead of {code}: {error}"
        if status is not None:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == status, error.response
        return error.response
    raise AssertionError(f"not refused with {code}")


def noise(size, seed=0):
    """Bytes that nobody compresses, the same for the same seed."""
    return hashlib.shake_256(str(seed).encode()).digest(size)


def read(s3, bucket, key, **more):
    """An object's bytes."""
    return s3.get_object(Bucket=bucket, Key=key, **more)["Body"].read()


def keys(pages):
    """The keys of all pages."""
    return [found["Key"] for page in pages for found in page.get("Contents", [])]

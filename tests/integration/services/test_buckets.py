"""A bucket that cannot be used is a fault of the infrastructure, whatever is wrong with it; it is never a blob that is missing."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from domain.errors import Fault, InfrastructureError
from services.adapters.s3 import Bucket, Objects
from tests.support.s3_server import SECRET_KEY, S3Server

NOBODY_LISTENS = "http://127.0.0.1:1"

WRONG: dict[str, Callable[[Bucket], Bucket]] = {
    "the service is away": lambda bucket: replace(bucket, endpoint=NOBODY_LISTENS),
    "another secret": lambda bucket: replace(bucket, secret_key="guessed"),
    "another key": lambda bucket: replace(bucket, access_key="somebody"),
    "no such bucket": lambda bucket: replace(bucket, name="nobody-has-this"),
}

CALLS: dict[str, Callable[[Objects], object]] = {
    "read": lambda objects: objects.read("a"),
    "write": lambda objects: objects.write("a", b"x"),
    "keys": lambda objects: objects.keys(),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_bucket_that_cannot_be_used(s3: S3Server, wrong: str, call: str) -> None:
    """Typed, with the place, worth another try later, and without the secret."""
    bucket = WRONG[wrong](s3.bucket("cas"))
    with pytest.raises(InfrastructureError) as away:
        CALLS[call](Objects(bucket, retries_max=0))
    assert away.value.fault is Fault.INFRASTRUCTURE
    assert str(away.value.at).startswith(f"s3://{bucket.name}/cas")
    assert SECRET_KEY not in str(away.value) + repr(bucket)
    assert "\n" not in str(away.value)


def test_a_prefix_keeps_two_systems_apart(s3: S3Server) -> None:
    """What one writes below its prefix, the other neither lists nor reads."""
    bucket = s3.bucket("one")
    one, other = Objects(bucket), Objects(replace(bucket, prefix="other"))
    one.write("a", b"x")
    assert (one.keys(), other.keys()) == (["a"], [])
    assert other.read("a") is None

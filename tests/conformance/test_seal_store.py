"""What every place of seals must do; each is one more parameter of the `seals` fixture."""

import threading
from pathlib import Path

import pytest

from domain.log_errors import SealInvalidError, SealTakenError
from services.adapters.seal_bucket import SealBucket
from services.adapters.seal_folder import SealFolder
from services.seals import SEAL_BYTES_MAX, SealStore
from tests.support.s3_server import S3Server


@pytest.fixture(params=["folder", "bucket"])
def seals(request: pytest.FixtureRequest, tmp_path: Path) -> SealStore:
    """An empty place of each kind."""
    if request.param == "folder":
        return SealFolder(tmp_path / "seals")
    server: S3Server = request.getfixturevalue("s3")
    return SealBucket(server.bucket("seals"))


def test_seals_are_read_back_by_their_numbers(seals: SealStore) -> None:
    """Empty at first; then each under its number, the highest noted."""
    assert (list(seals.numbers()), seals.newest()) == ([], 0)
    for number in (1, 2, 10):
        seals.add(number, b"seal %d" % number)
    assert (list(seals.numbers()), seals.newest()) == ([1, 2, 10], 10)
    assert [seals.read(number) for number in seals.numbers()] == [b"seal 1", b"seal 2", b"seal 10"]


def test_a_seal_is_never_written_over(seals: SealStore) -> None:
    """The second of a number is refused and leaves the first."""
    seals.add(1, b"first")
    with pytest.raises(SealTakenError):
        seals.add(1, b"second")
    assert seals.read(1) == b"first"


def test_of_many_sealers_one_writes_a_number(seals: SealStore) -> None:
    """Whoever comes second is told so, and what stands there is the winner's."""
    won: list[bytes] = []
    together = threading.Barrier(6)

    def add(data: bytes) -> None:
        together.wait()
        try:
            seals.add(1, data)
            won.append(data)
        except SealTakenError:
            pass

    threads = [threading.Thread(target=add, args=(b"by %d" % number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [seals.read(1)]


def test_a_missing_seal_is_a_typed_error(seals: SealStore) -> None:
    """It names the seal."""
    with pytest.raises(SealInvalidError) as missing:
        seals.read(7)
    assert missing.value.at == "seal-0000000007"


def test_no_more_is_read_than_a_seal_can_be(seals: SealStore) -> None:
    """One byte beyond the limit tells that it is none."""
    seals.add(1, b"x" * (SEAL_BYTES_MAX + 100))
    assert len(seals.read(1)) == SEAL_BYTES_MAX + 1

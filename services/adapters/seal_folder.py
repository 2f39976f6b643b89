"""Seals in a folder: `services.seals.SealStore`.

What must stay true: a seal appears whole and under its name, or not at all (written aside, flushed, then linked, which refuses a
name that is taken); its name survives a power cut. `newest` notes the highest number, so that removing the last seals is noticed
too; it is written after the seal, so a crash between the two leaves it one behind, which is harmless.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from domain.errors import InfrastructureError
from domain.log_errors import SealInvalidError, SealTakenError
from services.seals import NEWEST, SEAL_BYTES_MAX, file_of, name_of, noted, numbers_among

_TEMPORARY: Final = ".incoming-"


class SealFolder:
    """A folder of seals; made with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self) -> Sequence[int]:
        """See `SealStore`."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise _away(self._folder, error) from error
        return numbers_among(names)

    def newest(self) -> int:
        """See `SealStore`."""
        try:
            return noted((self._folder / NEWEST).read_bytes())
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise _away(self._folder, error) from error

    def read(self, number: int) -> bytes:
        """See `SealStore`."""
        path = self._path(number)
        try:
            with path.open("rb") as file:
                return file.read(SEAL_BYTES_MAX + 1)
        except FileNotFoundError:
            raise SealInvalidError("it is not there", at=name_of(number), expected="a seal of every number") from None
        except OSError as error:
            raise _away(path, error) from error

    def add(self, number: int, data: bytes) -> None:
        """See `SealStore`."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write(data, lambda temporary: self._publish(temporary, number))
            self._write(b"%d\n" % number, lambda temporary: os.replace(temporary, self._folder / NEWEST))
        except OSError as error:
            raise _away(self._folder, error) from error

    def _publish(self, temporary: str, number: int) -> None:
        try:
            os.link(temporary, self._path(number))
        except FileExistsError:
            raise SealTakenError("another process has written it", at=name_of(number), expected="the next") from None

    def _write(self, data: bytes, publish: Callable[[str], None]) -> None:
        """Write aside, flush, publish under the name, flush the name."""
        descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=self._folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o444)
            publish(temporary)
        finally:
            Path(temporary).unlink(missing_ok=True)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _path(self, number: int) -> Path:
        return self._folder / file_of(number)


def _away(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"the seals cannot be reached: {error.strerror}", at=str(path))

"""Reading the members of a JSON object, strictly: what is unknown, missing or of another type is refused with its place."""

from collections.abc import Iterator, Sequence
from typing import Any

from domain.errors import FinazError
from domain.market.errors import FlowInvalidError
from domain.market.records import fast_checked_name


class Reader:
    """The members of one JSON object at `at`. `needed` None leaves the check of names to a later reader.

    Every method raises `error` (a `FlowInvalidError` by default) at the member's place, or `NameInvalidError` for a name.
    """

    def __init__(
        self,
        value: Any,
        at: str,
        needed: Sequence[str] | None,
        optional: Sequence[str] = (),
        error: type[FinazError] = FlowInvalidError,
    ) -> None:
        self._at = at
        self._error = error
        if type(value) is not dict:
            raise error(f"a {type(value).__name__}", at=at, expected="an object")
        self._members: dict[str, Any] = value
        if needed is None:
            return
        for key in value:
            if key not in needed and key not in optional:
                expected = "only " + ", ".join([*needed, *optional]) if (needed or optional) else "no members"
                raise error("unknown field", at=f"{at}.{key[:64]}", expected=expected)
        for key in needed:
            if key not in value:
                raise error("missing field", at=f"{at}.{key}", expected="it to be given")

    def member(self, key: str, default: Any = None) -> Any:
        """The member as it stands."""
        return self._members.get(key, default)

    def integer(self, key: str, least: int, most: int | None, *, default: int | None = None) -> int:
        """An integer in a closed range; `1.0` and `true` are none."""
        value = self._members.get(key, default)
        if type(value) is not int or value < least or (most is not None and value > most):
            if most is None:
                expected = f"an integer from {least} on"
            else:
                expected = f"the integer {least}" if least == most else f"an integer in {least}..{most}"
            raise self._error(f"{_shown(value)} is not allowed", at=f"{self._at}.{key}", expected=expected)
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self._members.get(key)
        if type(value) is not str:
            raise self._error(f"{_shown(value)} is no string", at=f"{self._at}.{key}", expected="a string")
        return value

    def name(self, key: str) -> str:
        """A name: NFC, 1 to 255 bytes, no control characters."""
        return fast_checked_name(self.text(key), at=f"{self._at}.{key}")

    def checked_name(self, value: Any, at: str) -> str:
        """A name that stands in a list."""
        if type(value) is not str:
            raise self._error(f"{_shown(value)} is no string", at=at, expected="a string")
        return fast_checked_name(value, at=at)

    def choice(self, key: str, choices: Sequence[str], *, default: str | None = None) -> str:
        """One of a few words."""
        value = self._members.get(key, default)
        if type(value) is not str or value not in choices:
            expected = "one of " + ", ".join(choices)
            raise self._error(f"{_shown(value)} is not allowed", at=f"{self._at}.{key}", expected=expected)
        return value

    def items(self, key: str, *, least: int, most: int | None) -> Iterator[tuple[Any, str]]:
        """The items of a list, each with its place."""
        value = self._members.get(key)
        at = f"{self._at}.{key}"
        if type(value) is not list:
            raise self._error(f"{_shown(value)} is no list", at=at, expected="a list")
        if len(value) < least or (most is not None and len(value) > most):
            expected = f"{least} to {most}" if most is not None else f"at least {least}"
            raise self._error(f"{len(value)} items", at=at, expected=expected)
        return ((item, f"{at}[{index}]") for index, item in enumerate(value))


def _shown(value: Any) -> str:
    return repr(value)[:64]

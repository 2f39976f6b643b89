"""What the text of a setting may be: each kind reads a text into a value, or says in a `ValueError` what is wrong with it."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from domain.errors import FinazError, NameInvalidError
from domain.identity import checked_name

TOKEN_CHARACTERS_MAX: Final = 512


class Kind(msgspec.Struct, frozen=True):
    """How to read a text (`ValueError` with the second half of a sentence if it is wrong), and what is expected, in words."""

    expected: str
    read: Callable[[str], Any]


def whole(least: int, most: int) -> Kind:
    """A whole number within bounds, in decimal digits."""

    def read(text: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,18}", text):
            raise ValueError("is no whole number")
        return int(_within(int(text), least, most))

    return Kind(f"a whole number from {least} to {most}", read)


def number(least: float, most: float) -> Kind:
    """A decimal number within bounds."""

    def read(text: str) -> float:
        if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?", text):
            raise ValueError("is no number")
        return _within(float(text), least, most)

    return Kind(f"a number from {least:g} to {most:g}", read)


def choice(*words: str) -> Kind:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError("is none of them")
        return text

    return Kind("one of " + ", ".join(words), read)


def _within(value: float, least: float, most: float) -> float:
    if not math.isfinite(value) or not least <= value <= most:
        raise ValueError("is out of bounds")
    return value


def _dsn(text: str) -> str:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = conninfo_to_dict(text)
    except psycopg.Error as error:
        raise ValueError("cannot be read" if "password" in text else f"cannot be read ({str(error).strip()})") from None
    if not parts:
        raise ValueError("is empty")
    return text


def _folder(text: str) -> Path:
    path = _path(text)
    if path.exists() and not path.is_dir():
        raise ValueError("is no folder")
    return path


def _file(text: str) -> Path:
    path = _path(text)
    if path.exists() and not path.is_file():
        raise ValueError("is no file")
    return path


def _readable_file(text: str) -> Path:
    path = _path(text)
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError("is no file that can be read")
    return path


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("is empty")
    return Path(text).absolute()


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", text) or re.fullmatch(r"[^:]*:[^:]*", text):
        raise ValueError("is no host")
    return text


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or parts.query or parts.fragment or parts.username or re.search(r"\s", text):
        raise ValueError("is no such address")
    return text.rstrip("/")


def _bootstrap(text: str) -> str:
    for part in text.split(","):
        host, _, port = part.rpartition(":")
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]", host):
            raise ValueError("names no host with a port")
        if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
            raise ValueError("has a wrong port")
    return text


def _token(text: str) -> str:
    if not re.fullmatch(f"[!-~]{{1,{TOKEN_CHARACTERS_MAX}}}", text):
        raise ValueError("is no token")
    return text


def _label(text: str) -> str:
    try:
        return checked_name(text, at="label")
    except NameInvalidError as error:
        raise ValueError(f"is no name ({error.detail})") from None


def _mail_address(text: str) -> str:
    from services.contacts import checked_address

    try:
        return checked_address(text)
    except FinazError:
        raise ValueError("is no mail address") from None


def _clickhouse_dsn(text: str) -> str:
    if text.startswith("chdb://"):
        if not re.fullmatch(r"chdb:///[^?#]+", text):
            raise ValueError("names no folder by its whole path")
        return text
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("clickhouse", "clickhouses", "http", "https") and bool(parts.hostname)
        fits = fits and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits or re.search(r"\s", text):
        raise ValueError("is no such address")
    return text


def _bucket(text: str) -> str:
    """By the rules for bucket names that every service shares; a prefix of plain path segments."""
    place = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9_.=-]+)*)/?", text)
    if place is None or {".", ".."} & set(place[2].split("/")):
        raise ValueError("names no bucket")
    return text.rstrip("/")


def _region(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", text):
        raise ValueError("is no region")
    return text


BUCKET: Final = Kind("s3://BUCKET or s3://BUCKET/PREFIX", _bucket)
REGION: Final = Kind("a region's name, letters, digits and hyphens", _region)
CLICKHOUSE_DSN: Final = Kind(
    "chdb:///FOLDER (embedded), or a server: clickhouse://USER:PASSWORD@HOST:PORT/DATABASE, or the same with http or https",
    _clickhouse_dsn,
)
DSN: Final = Kind("a PostgreSQL URL (postgresql://…) or key=value connection string", _dsn)
FOLDER: Final = Kind("the path of a folder, which is made if it isn't there", _folder)
FILE: Final = Kind("the path of a file, which may not be there yet", _file)
READABLE_FILE: Final = Kind("the path of a file that can be read", _readable_file)
HOST: Final = Kind("a host name or address, without a port", _host)
URL: Final = Kind("an address such as http://127.0.0.1:8731", _url)
BOOTSTRAP: Final = Kind("a broker's host:port, or several separated by commas", _bootstrap)
TOKEN: Final = Kind(f"1 to {TOKEN_CHARACTERS_MAX} printable ASCII characters without a space", _token)
MAIL_ADDRESS: Final = Kind("a mail address: name@domain", _mail_address)
LABEL: Final = Kind("a name: 1 to 255 bytes, NFC, printable", _label)

"""Ed25519 keys for seals: made, kept in files, signing and verifying.

The private key is a PEM file (PKCS 8, unencrypted, readable by its owner only); the public key a PEM file too, or its 32 bytes in
hexadecimal. What must stay true: a key file is written once and never replaced.
"""

import os
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from domain.errors import InfrastructureError
from domain.log_errors import SealKeyInvalidError

KEY_BYTES_MAX: Final = 16_384
"""Bytes of a key file; a longer one is none."""

_EXPECTED: Final = "an Ed25519 key as PEM; `finaz seal key` makes one"


class Ed25519Signer:
    """`services.seals.Signer` with a private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key: str = key.public_key().public_bytes_raw().hex()

    def sign(self, data: bytes) -> bytes:
        """The 64 bytes of the signature."""
        return self._key.sign(data)


def verify(public_key: str, signature: bytes, data: bytes) -> bool:
    """Whether the signature is the key's over the data."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_signer(path: Path) -> Ed25519Signer:
    """The private key of a file. Raises `SealKeyInvalidError`, `InfrastructureError`."""
    try:
        key = serialization.load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SealKeyInvalidError(f"no private key: {error}", at=str(path), expected=_EXPECTED) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SealKeyInvalidError("the key is of another kind", at=str(path), expected=_EXPECTED)
    return Ed25519Signer(key)


def load_public_key(path: Path) -> str:
    """The public key of a file, in hexadecimal: of a public key, a private key, or 64 hexadecimal digits."""
    data = _read(path)
    text = data.strip()
    try:
        if len(text) == 64:
            return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text.decode("ascii"))).public_bytes_raw().hex()
        if b"PRIVATE KEY" in data:
            return load_signer(path).public_key
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SealKeyInvalidError(f"no public key: {error}", at=str(path), expected=_EXPECTED) from error
    if not isinstance(key, Ed25519PublicKey):
        raise SealKeyInvalidError("the key is of another kind", at=str(path), expected=_EXPECTED)
    return key.public_bytes_raw().hex()


def make_key(path: Path) -> Ed25519Signer:
    """A new private key in a new file, for its owner's eyes. Raises `SealKeyInvalidError` if the file is there."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise SealKeyInvalidError("the file is there already", at=str(path), expected="a new file") from None
    except OSError as error:
        raise InfrastructureError(f"the key cannot be written: {error.strerror}", at=str(path)) from error
    return Ed25519Signer(key)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(KEY_BYTES_MAX)
    except FileNotFoundError:
        raise SealKeyInvalidError("there is no such file", at=str(path), expected=_EXPECTED) from None
    except OSError as error:
        raise InfrastructureError(f"the key cannot be read: {error.strerror}", at=str(path)) from error

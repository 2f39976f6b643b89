"""How we prove to a broker who we are, and it to us: what every client of it is made with, readers, publishers and admins alike.

What must stay true: a secret stands in a file and in the client that it was given to, never in a value of ours that could be shown;
it is read whenever a client is made, so a new password needs no new process. Nothing is written, so a crash leaves nothing.
"""

from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from domain.stream.errors import BrokerRefusedError

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

SECURITY_PROTOCOLS: Final[tuple[str, ...]] = get_args(SecurityProtocol)
SASL_MECHANISMS: Final[tuple[str, ...]] = get_args(SaslMechanism)

PASSWORD_BYTES_MAX: Final = 4096
"""Bytes of a password's file."""


class BrokerSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """The protocol of the broker's listener, and what it asks for.

    `ca_file`: who the broker's certificate is to be signed by (None: whom the machine trusts). With SASL: mechanism, user, and the
    file whose first line is the password.
    """

    protocol: SecurityProtocol = "PLAINTEXT"
    ca_file: Path | None = None
    sasl_mechanism: SaslMechanism | None = None
    sasl_user: str | None = None
    sasl_password_file: Path | None = None

    def client_settings(self) -> dict[str, str]:
        """What the client is to be told, in its own words. Raises `BrokerRefusedError` for a password that cannot be read."""
        settings: dict[str, str] = {"security.protocol": self.protocol}
        if self.ca_file is not None:
            settings["ssl.ca.location"] = str(self.ca_file)
        if self.sasl_mechanism is not None and self.sasl_user is not None and self.sasl_password_file is not None:
            settings["sasl.mechanism"] = self.sasl_mechanism
            settings["sasl.username"] = self.sasl_user
            settings["sasl.password"] = _password(self.sasl_password_file)
        return settings


PLAINTEXT: Final = BrokerSecurity()
"""A listener that asks for nothing: brokers on this machine."""


def _password(file: Path) -> str:
    expected = f"a file with the password alone in its first line, at most {PASSWORD_BYTES_MAX} bytes"
    try:
        with file.open("rb") as opened:
            found = opened.read(PASSWORD_BYTES_MAX + 1)
        lines = found.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (
            error.strerror if isinstance(error, OSError) else "not UTF-8"
        )  # the latter's own text has bytes of the password
        raise BrokerRefusedError(f"the password cannot be read: {why}", at=str(file), expected=expected) from None
    if len(found) > PASSWORD_BYTES_MAX or len(lines) != 1 or not lines[0] or "\0" in lines[0]:
        raise BrokerRefusedError("that is no password", at=str(file), expected=expected)
    return lines[0]

"""Settings: the only place that reads the environment.

What there is stands in one table, `setting_variables.VARIABLES`, from which values, errors, `finaz settings` and
`docs/settings.md` all come. What must stay true: a process starts with settings that are all right
or not at all; the error names the variable, what was given and what was expected; a variable that nobody knows is refused too,
since it is most likely a misspelt one. Secrets are never shown. Nothing is written, so a crash leaves nothing.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from deployment.setting_variables import VARIABLES, Variable
from domain.errors import SettingsError

PREFIX: Final = "FINAZ_"

_INSTEAD: Final = {"cas_dir": " (or FINAZ_CAS_BUCKET or FINAZ_DATA_DIR)", "tokens_file": " (or FINAZ_DATA_DIR)"}
"""What else can say where something is, by the field."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process, all valid. Which variable fills a field, and what it means, stands in `VARIABLES`."""

    postgres_dsn: str | None
    data_dir: Path | None
    kafka_bootstrap: str | None
    broker_security_protocol: str
    broker_ca_file: Path | None
    broker_sasl_mechanism: str | None
    broker_sasl_user: str | None
    broker_sasl_password_file: Path | None
    clickhouse_dsn: str | None
    cache_dir: Path | None
    cas_dir: Path | None
    cas_bucket: str | None
    s3_endpoint: str | None
    s3_region: str
    s3_access_key: str | None
    s3_secret_key: str | None
    seal_dir: Path | None
    seal_bucket: str | None
    seal_key_file: Path | None
    seal_public_key_file: Path | None
    api_host: str
    api_port: int
    api_url: str
    token: str | None
    tokens_file: Path | None
    lease_ttl_seconds: float
    worker_poll_seconds: float
    worker_slots: int
    stream_slots: int
    worker_grace_seconds: float
    worker_label: str | None
    projection_poll_seconds: float
    body_size_max_bytes: int
    gateway_url: str | None
    gateway_timeout_seconds: float
    gateway_key: str | None
    gateway_webhook_secret: str | None
    smtp_host: str | None
    smtp_port: int
    mail_sender: str
    notices_topic: str | None
    log_level: str
    log_format: str

    def required_postgres_dsn(self) -> str:
        """The DSN, for what cannot do without. Raises `SettingsError`."""
        return cast(str, self._required("postgres_dsn", self.postgres_dsn))

    def required_kafka_bootstrap(self) -> str:
        """The broker's address, for what cannot do without. Raises `SettingsError`."""
        return cast(str, self._required("kafka_bootstrap", self.kafka_bootstrap))

    def required_cas_dir(self) -> Path:
        """Where blobs are stored: as set, else in the data folder. Raises `SettingsError` without either."""
        return cast(Path, self._required("cas_dir", self._in_data_dir(self.cas_dir, "cas")))

    def required_tokens_file(self) -> Path:
        """The API's tokens: as set, else in the data folder. Raises `SettingsError` without either."""
        return cast(Path, self._required("tokens_file", self._in_data_dir(self.tokens_file, "tokens.json")))

    def seals(self) -> tuple[Path | None, Path | None]:
        """Where seals are kept and the key they are signed with: as set, else in the data folder, else None."""
        return self._in_data_dir(self.seal_dir, "seals"), self._in_data_dir(self.seal_key_file, "seal.pem")

    def _in_data_dir(self, given: Path | None, name: str) -> Path | None:
        return given if given or self.data_dir is None else self.data_dir / name

    def _required(self, field: str, value: object) -> object:
        if value is None:
            variable = _variable(field)
            instead = _INSTEAD.get(field, "")
            raise SettingsError(f"not set{instead}", at=variable.name, expected=variable.kind.expected)
        return value


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in an environment (by default this process's). Raises `SettingsError` for the first that is wrong."""
    given = os.environ if environ is None else environ
    _refuse_unknown(given)
    settings = Settings(**{v.field: v.read(given.get(v.name)) for v in VARIABLES})
    _refuse_contradictions(settings)
    return settings


def load_client_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a command that talks to the API: `api_url` and `token` are what it needs. Raises `SettingsError`."""
    return load_settings(environ)


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where what can be fetched again is kept: as set, else `finaz` in the user's cache folder. Raises `SettingsError`."""
    given = os.environ if environ is None else environ
    chosen = load_settings(given).cache_dir
    users = Path(given.get("XDG_CACHE_HOME", ""))
    return chosen or (users if users.is_absolute() else Path.home() / ".cache") / "finaz"


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process that we start: this one's, without the token, which is the command line's own."""
    return {name: text for name, text in (os.environ if environ is None else environ).items() if name != "FINAZ_TOKEN"}


def without_broker(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment for who is given a broker of ours, without the address of another and how that one is spoken to."""
    return {
        k: text for k, text in environ.items() if k != "FINAZ_KAFKA_BOOTSTRAP" and not k.startswith("FINAZ_BROKER_")
    }


def described_settings(environ: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """Every variable with its value here, for people and machines; secrets are masked. Raises `SettingsError`.

    Keys: `variable`, `value` (text or None), `given` (whether the environment has it), `default`, `expected`, `meaning`.
    """
    given = os.environ if environ is None else environ
    settings = load_settings(given)
    return [
        {
            "variable": v.name,
            "value": _shown(v, getattr(settings, v.field)),
            "given": v.name in given,
            "default": v.default,
            "expected": v.kind.expected,
            "meaning": v.meaning,
        }
        for v in VARIABLES
    ]


def settings_page() -> str:
    """`docs/settings.md`, from the table."""
    rows = "".join(
        f"| `{v.name}` | {v.kind.expected} | {f'`{v.default}`' if v.default is not None else '–'} | {v.meaning} |\n"
        for v in VARIABLES
    )
    return _PAGE_HEAD + rows


_PAGE_HEAD: Final = """# Settings

All settings come from the environment and are checked before anything starts. A wrong one, or one that nobody knows, stops the
process with an error that names it and what was expected. `finaz settings` shows what holds. This page is generated from the
table in `deployment/setting_variables.py` (`pytest tests/unit/deployment/test_settings.py --update-goldens`).

| variable | what it may be | default | meaning |
| --- | --- | --- | --- |
"""


def _shown(variable: Variable, value: object) -> str | None:
    if value is None:
        return None
    return "(set, not shown)" if variable.secret else str(value)


def _refuse_contradictions(settings: Settings) -> None:
    """Nothing is kept in two places, and a key comes with its secret."""
    for bucket, folder in (("cas_bucket", "cas_dir"), ("seal_bucket", "seal_dir")):
        if getattr(settings, bucket) is not None and getattr(settings, folder) is not None:
            other = _variable(folder).name
            raise SettingsError(f"set beside {other}", at=_variable(bucket).name, expected=f"one of it and {other}")
    if (settings.s3_access_key is None) != (settings.s3_secret_key is None):
        given, lacking = "s3_access_key", "s3_secret_key"
        if settings.s3_access_key is None:
            given, lacking = lacking, given
        without = f"set without {_variable(lacking).name}"
        raise SettingsError(without, at=_variable(given).name, expected="a key with its secret, or neither")
    _refuse_broker_contradictions(settings)


def _refuse_broker_contradictions(settings: Settings) -> None:
    """What a protocol asks for is given, and nothing that it has no use for: somebody would believe in a protection that isn't."""
    protocol, variable = settings.broker_security_protocol, _variable("broker_security_protocol")
    sasl = ("broker_sasl_mechanism", "broker_sasl_user", "broker_sasl_password_file")
    needed = (*(("kafka_bootstrap",) if protocol != "PLAINTEXT" else ()), *(sasl if "SASL" in protocol else ()))
    for field in needed:
        if getattr(settings, field) is None:
            without = f"{protocol} is set without {_variable(field).name}"
            raise SettingsError(without, at=variable.name, expected=f"{_variable(field).name} beside it, or PLAINTEXT")
    useless = (*(("broker_ca_file",) if "SSL" not in protocol else ()), *(sasl if "SASL" not in protocol else ()))
    for field in useless:
        if getattr(settings, field) is not None:
            beside = f"set, with {variable.name}={protocol}, which has no use for it"
            expected = "SSL or SASL_SSL there" if field == "broker_ca_file" else "SASL_PLAINTEXT or SASL_SSL there"
            raise SettingsError(beside, at=_variable(field).name, expected=expected)


def _variable(field: str) -> Variable:
    return next(v for v in VARIABLES if v.field == field)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = [v.name for v in VARIABLES]
    for name in sorted(given):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"there is no such setting{hint}", at=name, expected="one that `finaz settings` shows")

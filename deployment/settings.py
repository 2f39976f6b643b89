"""Settings: the only place that reads the environment.

One table, `VARIABLES`, says of every `FINAZ_…` variable what it is, what it may be, its default and its meaning; values, errors,
`finaz settings` and `docs/settings.md` all come from it. What must stay true: a process starts with settings that are all right
or not at all; the error names the variable, what was given and what was expected; a variable that nobody knows is refused too,
since it is most likely a misspelt one. Secrets are never shown. Nothing is written, so a crash leaves nothing.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from deployment import setting_kinds as kinds
from domain.errors import SettingsError

PREFIX: Final = "FINAZ_"


class Variable(msgspec.Struct, frozen=True):
    """One variable: its name, the field of `Settings` that it fills, how its text is read, and what it means."""

    name: str
    field: str
    kind: kinds.Kind
    default: str | None
    """The text that stands where nothing is given; None where the value is then None."""
    meaning: str
    secret: bool = False

    def read(self, text: str | None) -> Any:
        """The value of a text; None for no text and no default. Raises `SettingsError`."""
        given = self.default if text is None else text
        if given is None:
            return None
        try:
            return self.kind.read(given)
        except ValueError as error:
            shown = "a value that is not shown" if self.secret else repr(given[:200])
            raise SettingsError(f"{shown} {error}", at=self.name, expected=self.kind.expected) from None


VARIABLES: Final = (
    Variable(
        "FINAZ_POSTGRES_DSN",
        "postgres_dsn",
        kinds.DSN,
        None,
        "The event store. Without it, `finaz up`, demos, drills and benchmarks start an embedded PostgreSQL.",
        secret=True,
    ),
    Variable(
        "FINAZ_DATA_DIR",
        "data_dir",
        kinds.FOLDER,
        None,
        "Where `finaz up` keeps the database, the blobs and its token. Without it, in a temporary folder that it removes.",
    ),
    Variable(
        "FINAZ_KAFKA_BOOTSTRAP",
        "kafka_bootstrap",
        kinds.BOOTSTRAP,
        None,
        "The broker of streams. Without it, `finaz up`, demos and drills start an embedded one.",
    ),
    Variable(
        "FINAZ_CLICKHOUSE_DSN",
        "clickhouse_dsn",
        kinds.CLICKHOUSE_DSN,
        None,
        "Where published features are staged. Without it they are not, except by `finaz up`, which embeds a ClickHouse.",
        secret=True,
    ),
    Variable(
        "FINAZ_CACHE_DIR",
        "cache_dir",
        kinds.FOLDER,
        None,
        "What can be fetched again, such as the jars of Apache Kafka. Without it, `finaz` in the user's own cache folder.",
    ),
    Variable(
        "FINAZ_CAS_DIR", "cas_dir", kinds.FOLDER, None, "Where blobs are stored. Without it, `cas` in FINAZ_DATA_DIR."
    ),
    Variable(
        "FINAZ_SEAL_DIR",
        "seal_dir",
        kinds.FOLDER,
        None,
        "Where seals of the log's hash chain are kept, out of the database's reach. Without it, `seals` in FINAZ_DATA_DIR.",
    ),
    Variable(
        "FINAZ_SEAL_KEY_FILE",
        "seal_key_file",
        kinds.FILE,
        None,
        "The private key that signs seals (`finaz seal key` makes one). Without it, `seal.pem` in FINAZ_DATA_DIR, made if missing.",
    ),
    Variable(
        "FINAZ_SEAL_PUBLIC_KEY_FILE",
        "seal_public_key_file",
        kinds.FILE,
        None,
        "The public key that audits verify seals with, for who has not the private one.",
    ),
    Variable("FINAZ_API_HOST", "api_host", kinds.HOST, "127.0.0.1", "Where the API listens."),
    Variable("FINAZ_API_PORT", "api_port", kinds.whole(0, 65535), "8731", "On which port; 0 takes a free one."),
    Variable("FINAZ_API_URL", "api_url", kinds.URL, "http://127.0.0.1:8731", "Where the command line finds the API."),
    Variable("FINAZ_TOKEN", "token", kinds.TOKEN, None, "The command line's bearer token.", secret=True),
    Variable(
        "FINAZ_TOKENS_FILE",
        "tokens_file",
        kinds.FILE,
        None,
        "The tokens that the API takes, made by `finaz token create`. Without it, `tokens.json` in FINAZ_DATA_DIR.",
    ),
    Variable(
        "FINAZ_LEASE_TTL_SEC",
        "lease_ttl_seconds",
        kinds.number(0.5, 3600),
        "30",
        "How long a lease lives without a heartbeat: what a run waits before another worker may take it over.",
    ),
    Variable(
        "FINAZ_WORKER_POLL_SEC",
        "worker_poll_seconds",
        kinds.number(0.01, 60),
        "1",
        "How often a worker looks for runs where no notification woke it.",
    ),
    Variable(
        "FINAZ_WORKER_SLOTS",
        "worker_slots",
        kinds.whole(1, 64),
        "2",
        "Big runs that one worker computes at once, each in a thread; small ones don't count.",
    ),
    Variable(
        "FINAZ_STREAM_SLOTS",
        "stream_slots",
        kinds.whole(1, 64),
        "4",
        "Stream runs that one stream server works on at once, each in a thread.",
    ),
    Variable(
        "FINAZ_WORKER_GRACE_SEC",
        "worker_grace_seconds",
        kinds.number(0, 3600),
        "10",
        "How long a worker that was told to stop goes on with its runs before it hands them back.",
    ),
    Variable(
        "FINAZ_WORKER_LABEL", "worker_label", kinds.LABEL, None, "A name of the worker for people; it decides nothing."
    ),
    Variable(
        "FINAZ_PROJECTION_POLL_SEC",
        "projection_poll_seconds",
        kinds.number(0.01, 60),
        "1",
        "How often a projection looks for events where no notification woke it.",
    ),
    Variable(
        "FINAZ_BODY_SIZE_MAX_BYTES",
        "body_size_max_bytes",
        kinds.whole(1024, 1024**3),
        "1048576",
        "The longest JSON body of a request that the API reads.",
    ),
    Variable(
        "FINAZ_GATEWAY_URL", "gateway_url", kinds.URL, None, "The payment gateway. Without it, nothing is charged."
    ),
    Variable(
        "FINAZ_GATEWAY_TIMEOUT_SEC",
        "gateway_timeout_seconds",
        kinds.number(0.1, 30),
        "5",
        "How long the gateway may take to answer; then it is not known what it did.",
    ),
    Variable("FINAZ_GATEWAY_KEY", "gateway_key", kinds.TOKEN, None, "Our key for the gateway.", secret=True),
    Variable(
        "FINAZ_GATEWAY_WEBHOOK_SECRET",
        "gateway_webhook_secret",
        kinds.TOKEN,
        None,
        "What the gateway signs its webhooks with. Without it, none is heard.",
        secret=True,
    ),
    Variable("FINAZ_SMTP_HOST", "smtp_host", kinds.HOST, None, "The mail server. Without it, mails wait."),
    Variable("FINAZ_SMTP_PORT", "smtp_port", kinds.whole(1, 65535), "25", "The mail server's port."),
    Variable("FINAZ_MAIL_SENDER", "mail_sender", kinds.LABEL, "tickets@finaz.invalid", "Whom mails come from."),
    Variable(
        "FINAZ_NOTICES_TOPIC",
        "notices_topic",
        kinds.LABEL,
        None,
        "The broker's topic that purchases are told on. Without it, consumers read the log.",
    ),
    Variable(
        "FINAZ_LOG_LEVEL",
        "log_level",
        kinds.choice("debug", "info", "warning", "error"),
        "info",
        "The least that is logged.",
    ),
    Variable(
        "FINAZ_LOG_FORMAT", "log_format", kinds.choice("json", "console"), "json", "Lines of JSON, or text for people."
    ),
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process, all valid. Which variable fills a field, and what it means, stands in `VARIABLES`."""

    postgres_dsn: str | None
    data_dir: Path | None
    kafka_bootstrap: str | None
    clickhouse_dsn: str | None
    cache_dir: Path | None
    cas_dir: Path | None
    seal_dir: Path | None
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
            variable = next(v for v in VARIABLES if v.field == field)
            instead = " (or FINAZ_DATA_DIR)" if field in ("cas_dir", "tokens_file") else ""
            raise SettingsError(f"not set{instead}", at=variable.name, expected=variable.kind.expected)
        return value


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in an environment (by default this process's). Raises `SettingsError` for the first that is wrong."""
    given = os.environ if environ is None else environ
    _refuse_unknown(given)
    return Settings(**{v.field: v.read(given.get(v.name)) for v in VARIABLES})


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
table in `deployment/settings.py` (`pytest tests/unit/deployment/test_settings.py --update-goldens`).

| variable | what it may be | default | meaning |
| --- | --- | --- | --- |
"""


def _shown(variable: Variable, value: object) -> str | None:
    if value is None:
        return None
    return "(set, not shown)" if variable.secret else str(value)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = [v.name for v in VARIABLES]
    for name in sorted(given):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"there is no such setting{hint}", at=name, expected="one that `finaz settings` shows")

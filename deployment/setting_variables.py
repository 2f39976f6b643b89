"""The table of settings: every `FINAZ_…` variable with the field it fills, its kind, its default and its meaning.

Values, errors, `finaz settings` and `docs/settings.md` all come from it. What must stay true: one variable fills one field of
`deployment.settings.Settings`, and the other way round (a test). Nothing here reads the environment.
"""

from typing import Any, Final

import msgspec

from deployment import setting_kinds as kinds
from domain.errors import SettingsError
from services.adapters.kafka_security import SASL_MECHANISMS, SECURITY_PROTOCOLS


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
        "FINAZ_BROKER_SECURITY_PROTOCOL",
        "broker_security_protocol",
        kinds.choice(*SECURITY_PROTOCOLS),
        "PLAINTEXT",
        "How that broker is spoken to: encrypted with SSL, proving who we are with SASL.",
    ),
    Variable(
        "FINAZ_BROKER_CA_FILE",
        "broker_ca_file",
        kinds.READABLE_FILE,
        None,
        "The certificates (PEM) of which one signed the broker's. Without it, those that this machine trusts.",
    ),
    Variable(
        "FINAZ_BROKER_SASL_MECHANISM",
        "broker_sasl_mechanism",
        kinds.choice(*SASL_MECHANISMS),
        None,
        "How we prove to the broker who we are.",
    ),
    Variable("FINAZ_BROKER_SASL_USER", "broker_sasl_user", kinds.LABEL, None, "Who we are to the broker."),
    Variable(
        "FINAZ_BROKER_SASL_PASSWORD_FILE",
        "broker_sasl_password_file",
        kinds.READABLE_FILE,
        None,
        "The file with that user's password, in one line; it is read again for every new client.",
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
        "FINAZ_CAS_BUCKET",
        "cas_bucket",
        kinds.BUCKET,
        None,
        "The S3-compatible bucket where blobs are stored instead of a folder.",
    ),
    Variable(
        "FINAZ_S3_ENDPOINT",
        "s3_endpoint",
        kinds.URL,
        None,
        "Where buckets are found. Without it, at Amazon in FINAZ_S3_REGION.",
    ),
    Variable("FINAZ_S3_REGION", "s3_region", kinds.REGION, "us-east-1", "The region of the buckets."),
    Variable(
        "FINAZ_S3_ACCESS_KEY",
        "s3_access_key",
        kinds.TOKEN,
        None,
        "Who we are to the buckets' service. Without it, whoever the machine's role is.",
    ),
    Variable("FINAZ_S3_SECRET_KEY", "s3_secret_key", kinds.TOKEN, None, "The secret of that key.", secret=True),
    Variable(
        "FINAZ_SEAL_DIR",
        "seal_dir",
        kinds.FOLDER,
        None,
        "Where seals of the log's hash chain are kept, out of the database's reach. Without it, `seals` in FINAZ_DATA_DIR.",
    ),
    Variable(
        "FINAZ_SEAL_BUCKET",
        "seal_bucket",
        kinds.BUCKET,
        None,
        "The S3-compatible bucket where seals are kept instead of a folder, best one with object lock.",
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
    Variable("FINAZ_MAIL_SENDER", "mail_sender", kinds.MAIL_ADDRESS, "tickets@finaz.invalid", "Whom mails come from."),
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

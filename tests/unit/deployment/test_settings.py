"""Settings are all right or the process does not start, and the error says what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployment import settings as settings_module
from deployment.setting_variables import VARIABLES
from deployment.settings import (
    Settings,
    cache_folder,
    child_environment,
    described_settings,
    load_client_settings,
    load_settings,
    settings_page,
    without_broker,
)
from domain.errors import SettingsError


def test_the_table_and_the_struct_name_the_same_fields() -> None:
    """Every field is filled by exactly one variable, and every variable fills a field."""
    assert [v.field for v in VARIABLES] == [field.name for field in msgspec.structs.fields(Settings)]
    assert len({v.name for v in VARIABLES}) == len(VARIABLES)


def test_without_an_environment_the_defaults_hold() -> None:
    """No variable is required to start: loopback, no secrets, no folder."""
    found = load_settings({"PATH": "/bin", "FINA_X": "not ours"})
    assert (found.api_host, found.api_port, found.lease_ttl_seconds) == ("127.0.0.1", 8731, 30.0)
    assert (found.postgres_dsn, found.data_dir, found.cas_dir, found.token, found.tokens_file) == (None,) * 5
    assert (found.log_level, found.log_format) == ("info", "json")


def test_what_is_given_holds(tmp_path: Path) -> None:
    """Each kind of value is read as what it is."""
    given_values = {
        "FINAZ_POSTGRES_DSN": "postgresql://finaz:secret@db.internal:5433/finaz?sslmode=require",
        "FINAZ_DATA_DIR": str(tmp_path),
        "FINAZ_API_HOST": "::1",
        "FINAZ_API_PORT": "0",
        "FINAZ_API_URL": "https://finaz.example/base/",
        "FINAZ_TOKEN": "fz_abc",
        "FINAZ_LEASE_TTL_SEC": "1.5",
        "FINAZ_WORKER_GRACE_SEC": "0",
        "FINAZ_WORKER_SLOTS": "64",
        "FINAZ_WORKER_LABEL": "Zürich 1",
        "FINAZ_LOG_FORMAT": "console",
    }
    found = load_settings(given_values)
    assert found.postgres_dsn == given_values["FINAZ_POSTGRES_DSN"]
    assert (found.api_host, found.api_port, found.api_url) == ("::1", 0, "https://finaz.example/base")
    assert (found.token, found.lease_ttl_seconds, found.worker_grace_seconds) == ("fz_abc", 1.5, 0.0)
    assert (found.worker_slots, found.worker_label, found.log_format) == (64, "Zürich 1", "console")
    assert found.required_cas_dir() == tmp_path / "cas"
    assert found.required_tokens_file() == tmp_path / "tokens.json"
    assert load_settings({"FINAZ_POSTGRES_DSN": "host=/run/pg user=finaz"}).required_postgres_dsn()


BROKER = {"FINAZ_KAFKA_BOOTSTRAP": "here:9092"}
GUARDED_BROKER = {
    **BROKER,
    "FINAZ_BROKER_SECURITY_PROTOCOL": "SASL_SSL",
    "FINAZ_BROKER_CA_FILE": __file__,
    "FINAZ_BROKER_SASL_MECHANISM": "SCRAM-SHA-512",
    "FINAZ_BROKER_SASL_USER": "ana",
    "FINAZ_BROKER_SASL_PASSWORD_FILE": __file__,
}

WRONG = [
    ("FINAZ_POSTGRES_DSN", "postgresql:///finaz?no_such_option=1", "PostgreSQL URL"),
    ("FINAZ_POSTGRES_DSN", "just words", "PostgreSQL URL"),
    ("FINAZ_POSTGRES_DSN", "", "PostgreSQL URL"),
    ("FINAZ_DATA_DIR", "", "a folder"),
    ("FINAZ_DATA_DIR", __file__, "a folder"),
    ("FINAZ_KAFKA_BOOTSTRAP", "", "host:port"),
    ("FINAZ_KAFKA_BOOTSTRAP", "here", "host:port"),
    ("FINAZ_KAFKA_BOOTSTRAP", "here:0", "host:port"),
    ("FINAZ_KAFKA_BOOTSTRAP", "here:99999", "host:port"),
    ("FINAZ_KAFKA_BOOTSTRAP", "here:9092,", "host:port"),
    ("FINAZ_KAFKA_BOOTSTRAP", "kafka://here:9092", "host:port"),
    ("FINAZ_BROKER_SECURITY_PROTOCOL", "TLS", "SASL_SSL"),
    ("FINAZ_BROKER_CA_FILE", "/nowhere/ca.pem", "can be read"),
    ("FINAZ_BROKER_CA_FILE", str(Path(__file__).parent), "can be read"),
    ("FINAZ_BROKER_SASL_MECHANISM", "plain", "SCRAM-SHA-512"),
    ("FINAZ_BROKER_SASL_USER", "", "a name"),
    ("FINAZ_BROKER_SASL_PASSWORD_FILE", "/nowhere/password", "can be read"),
    ("FINAZ_CLICKHOUSE_DSN", "", "chdb:///FOLDER"),
    ("FINAZ_CLICKHOUSE_DSN", "chdb://folder", "chdb:///FOLDER"),
    ("FINAZ_CLICKHOUSE_DSN", "chdb:///", "chdb:///FOLDER"),
    ("FINAZ_CLICKHOUSE_DSN", "here:8123", "a server"),
    ("FINAZ_CLICKHOUSE_DSN", "clickhouse://here:0/x", "a server"),
    ("FINAZ_CACHE_DIR", __file__, "a folder"),
    ("FINAZ_CAS_DIR", __file__, "a folder"),
    ("FINAZ_CAS_BUCKET", "", "s3://BUCKET"),
    ("FINAZ_CAS_BUCKET", "bucket", "s3://BUCKET"),
    ("FINAZ_CAS_BUCKET", "s3://Bucket", "s3://BUCKET"),
    ("FINAZ_CAS_BUCKET", "s3://bucket/../other", "s3://BUCKET"),
    ("FINAZ_CAS_BUCKET", "s3://bucket//x", "s3://BUCKET"),
    ("FINAZ_S3_ENDPOINT", "here:9000", "http://"),
    ("FINAZ_S3_REGION", "", "a region"),
    ("FINAZ_S3_ACCESS_KEY", "two words", "printable ASCII"),
    ("FINAZ_S3_SECRET_KEY", "", "printable ASCII"),
    ("FINAZ_SEAL_BUCKET", "https://bucket", "s3://BUCKET"),
    ("FINAZ_TOKENS_FILE", str(Path(__file__).parent), "a file"),
    ("FINAZ_SEAL_DIR", __file__, "a folder"),
    ("FINAZ_SEAL_KEY_FILE", str(Path(__file__).parent), "a file"),
    ("FINAZ_SEAL_PUBLIC_KEY_FILE", "", "a file"),
    ("FINAZ_API_HOST", "", "without a port"),
    ("FINAZ_API_HOST", "127.0.0.1:80", "without a port"),
    ("FINAZ_API_HOST", "http://here", "without a port"),
    ("FINAZ_API_PORT", "65536", "from 0 to 65535"),
    ("FINAZ_API_PORT", "-1", "from 0 to 65535"),
    ("FINAZ_API_PORT", "80.0", "from 0 to 65535"),
    ("FINAZ_API_PORT", " 80", "from 0 to 65535"),
    ("FINAZ_API_PORT", "٨٠", "from 0 to 65535"),
    ("FINAZ_API_PORT", "9" * 5000, "from 0 to 65535"),
    ("FINAZ_API_URL", "127.0.0.1:8731", "http://"),
    ("FINAZ_API_URL", "ftp://here", "http://"),
    ("FINAZ_API_URL", "http://here:99999", "http://"),
    ("FINAZ_API_URL", "http://[::1", "http://"),
    ("FINAZ_API_URL", "http://me:pw@here", "http://"),
    ("FINAZ_TOKEN", "", "printable ASCII"),
    ("FINAZ_TOKEN", "two words", "printable ASCII"),
    ("FINAZ_TOKEN", "x" * 513, "printable ASCII"),
    ("FINAZ_LEASE_TTL_SEC", "0", "from 0.5 to 3600"),
    ("FINAZ_LEASE_TTL_SEC", "nan", "from 0.5 to 3600"),
    ("FINAZ_LEASE_TTL_SEC", "inf", "from 0.5 to 3600"),
    ("FINAZ_LEASE_TTL_SEC", "1e999", "from 0.5 to 3600"),
    ("FINAZ_LEASE_TTL_SEC", "1_0", "from 0.5 to 3600"),
    ("FINAZ_LEASE_TTL_SEC", "30s", "from 0.5 to 3600"),
    ("FINAZ_WORKER_POLL_SEC", "-1", "from 0.01 to 60"),
    ("FINAZ_WORKER_SLOTS", "0", "from 1 to 64"),
    ("FINAZ_STREAM_SLOTS", "65", "from 1 to 64"),
    ("FINAZ_WORKER_GRACE_SEC", "3601", "from 0 to 3600"),
    ("FINAZ_WORKER_LABEL", "", "a name"),
    ("FINAZ_WORKER_LABEL", "a\tb", "a name"),
    ("FINAZ_WORKER_LABEL", "u\u0308ber", "NFC"),
    ("FINAZ_PROJECTION_POLL_SEC", "61", "from 0.01 to 60"),
    ("FINAZ_BODY_SIZE_MAX_BYTES", "1023", "from 1024"),
    ("FINAZ_GATEWAY_URL", "here:80", "http://"),
    ("FINAZ_GATEWAY_TIMEOUT_SEC", "0", "from 0.1 to 30"),
    ("FINAZ_GATEWAY_KEY", "two words", "printable ASCII"),
    ("FINAZ_GATEWAY_WEBHOOK_SECRET", "", "printable ASCII"),
    ("FINAZ_SMTP_HOST", "mail:25", "without a port"),
    ("FINAZ_SMTP_PORT", "0", "from 1 to 65535"),
    ("FINAZ_MAIL_SENDER", "", "name@domain"),
    ("FINAZ_MAIL_SENDER", "Tickets <tickets@example.org>", "name@domain"),
    ("FINAZ_NOTICES_TOPIC", "", "a name"),
    ("FINAZ_LOG_LEVEL", "loud", "debug, info, warning, error"),
    ("FINAZ_LOG_FORMAT", "JSON", "json, console"),
]


@pytest.mark.parametrize(("name", "text", "expected"), WRONG)
def test_a_wrong_value_is_named_with_what_was_expected(name: str, text: str, expected: str) -> None:
    """The error carries the variable, what was given (unless it is a secret), and what would be right."""
    with pytest.raises(SettingsError) as refusal:
        load_settings({name: text})
    error = refusal.value
    assert error.code == "SETTINGS_INVALID"
    assert error.at == name
    assert error.expected is not None
    assert expected in error.expected
    secret = next(v.secret for v in VARIABLES if v.name == name)
    assert secret or repr(text[:200]) in error.detail


def test_every_variable_has_a_wrong_value_in_the_table_above() -> None:
    """No variable takes just anything."""
    assert {name for name, _, _ in WRONG} == {v.name for v in VARIABLES}


@pytest.mark.parametrize(
    ("name", "near"),
    [("FINAZ_API_PROT", "FINAZ_API_PORT"), ("FINAZ_LEASE_TTL_SECONDS", "FINAZ_LEASE_TTL_SEC"), ("FINAZ_ZZZ", None)],
)
def test_an_unknown_variable_is_refused(name: str, near: str | None) -> None:
    """A misspelt variable does not silently do nothing: the error names it and the one that was probably meant."""
    with pytest.raises(SettingsError) as refusal:
        load_settings({name: "1"})
    assert refusal.value.at == name
    assert (f"did you mean {near}?" in refusal.value.detail) == (near is not None)


def test_what_is_needed_and_missing_is_named() -> None:
    """A part that cannot do without a setting names the variable."""
    found = load_settings({})
    for required, name in (
        (found.required_postgres_dsn, "FINAZ_POSTGRES_DSN"),
        (found.required_cas_dir, "FINAZ_CAS_DIR"),
        (found.required_tokens_file, "FINAZ_TOKENS_FILE"),
    ):
        with pytest.raises(SettingsError) as refusal:
            required()
        assert refusal.value.at == name


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ({"FINAZ_CAS_BUCKET": "s3://here", "FINAZ_CAS_DIR": "/there"}, "FINAZ_CAS_BUCKET"),
        ({"FINAZ_SEAL_BUCKET": "s3://here/seals", "FINAZ_SEAL_DIR": "/there"}, "FINAZ_SEAL_BUCKET"),
        ({"FINAZ_S3_ACCESS_KEY": "me"}, "FINAZ_S3_ACCESS_KEY"),
        ({"FINAZ_S3_SECRET_KEY": "secret"}, "FINAZ_S3_SECRET_KEY"),
        ({"FINAZ_BROKER_SECURITY_PROTOCOL": "SSL"}, "FINAZ_BROKER_SECURITY_PROTOCOL"),
        ({**BROKER, "FINAZ_BROKER_CA_FILE": __file__}, "FINAZ_BROKER_CA_FILE"),
        ({**BROKER, "FINAZ_BROKER_SASL_USER": "ana"}, "FINAZ_BROKER_SASL_USER"),
        *(
            (
                {name: text for name, text in GUARDED_BROKER.items() if name != left_out},
                "FINAZ_BROKER_SECURITY_PROTOCOL",
            )
            for left_out in GUARDED_BROKER
            if left_out not in ("FINAZ_BROKER_SECURITY_PROTOCOL", "FINAZ_BROKER_CA_FILE")
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, str], at: str) -> None:
    """What would be kept in two places, or is half a pair, is named before anything starts."""
    with pytest.raises(SettingsError) as refusal:
        load_settings(given)
    assert refusal.value.at == at
    assert any(name in str(refusal.value) for name in ("FINAZ_CAS_DIR", "FINAZ_SEAL_DIR", "FINAZ_S3_", "FINAZ_BROKER_"))


def test_secrets_are_never_shown() -> None:
    """Neither the description of settings, nor an error about a wrong one, shows a secret."""
    secret = "s3cr3t"
    shown = described_settings({"FINAZ_POSTGRES_DSN": f"postgresql://a:{secret}@b/c", "FINAZ_TOKEN": secret})
    assert secret not in str(shown)
    assert {s["variable"] for s in shown if s["given"]} == {"FINAZ_POSTGRES_DSN", "FINAZ_TOKEN"}
    for name, text in (
        ("FINAZ_POSTGRES_DSN", f"postgresql://a:{secret}@b/c?nonsense=1"),
        ("FINAZ_TOKEN", f"{secret} x"),
    ):
        with pytest.raises(SettingsError) as refusal:
            load_settings({name: text})
        assert secret not in str(refusal.value)


@given(
    st.sampled_from(VARIABLES), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
)
def test_any_text_is_read_or_refused(variable: Any, text: str) -> None:
    """Whatever stands in the environment, the outcome is settings or a `SettingsError` that names the variable."""
    try:
        load_settings({variable.name: text})
    except SettingsError as error:
        assert error.at == variable.name
        assert error.expected


def test_who_is_given_a_broker_of_ours_knows_of_no_other() -> None:
    """Neither its address nor how it is spoken to, which would keep it from ours."""
    assert load_settings(GUARDED_BROKER).broker_sasl_user == "ana"
    assert without_broker({"PATH": "/bin", **GUARDED_BROKER}) == {"PATH": "/bin"}


def test_children_get_the_environment_but_not_the_token() -> None:
    """A process that we start sees what we see, except the command line's own token."""
    environ = {"PATH": "/bin", "FINAZ_TOKEN": "t", "FINAZ_LOG_LEVEL": "debug"}
    assert child_environment(environ) == {"PATH": "/bin", "FINAZ_LOG_LEVEL": "debug"}


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument the settings are those of this process."""
    monkeypatch.setattr(settings_module.os, "environ", {"FINAZ_API_PORT": "1234", "FINAZ_TOKEN": "t"})
    assert load_settings().api_port == 1234
    assert load_client_settings().token == "t"
    assert child_environment() == {"FINAZ_API_PORT": "1234"}
    assert next(s for s in described_settings() if s["variable"] == "FINAZ_API_PORT")["value"] == "1234"


def test_the_page_is_generated(golden: Callable[[str, Any], None]) -> None:
    """`docs/settings.md` is what the table says."""
    golden("docs/settings.md", settings_page())


def test_the_cache_is_where_the_user_keeps_such_things(tmp_path: Path) -> None:
    """As set; else below the user's own cache folder, of which the standard wants an absolute path."""
    assert cache_folder({"FINAZ_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "finaz"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "finaz"


def test_a_broker_may_have_several_addresses() -> None:
    """Names, IPv4 and bracketed IPv6 addresses, each with its port; without one, asking for it names the variable."""
    several = "one.example:9092,127.0.0.1:9093,[::1]:9094"
    assert load_settings({"FINAZ_KAFKA_BOOTSTRAP": several}).required_kafka_bootstrap() == several
    with pytest.raises(SettingsError) as refusal:
        load_settings({}).required_kafka_bootstrap()
    assert refusal.value.at == "FINAZ_KAFKA_BOOTSTRAP"

"""`finaz show` and `finaz purchase`: put a show on sale, buy, look, settle what the gateway left open; and the sandbox gateway."""

from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import click

from deployment.cli.output import answer, facts, first, json_line, json_option, note, table, wants_json

LIMIT_DEFAULT: Final = 50
STUCK_SECONDS_DEFAULT: Final = 900


@click.group()
def show() -> None:
    """Put shows on sale, see what can be had."""


@show.command(
    epilog="Example: finaz show create --title Lohengrin --starts-at 2026-06-05T19:00:00Z --currency EUR --seats A1:4500,A2:4500"
)
@click.option("--title", required=True, help="What it is called.")
@click.option("--starts-at", required=True, metavar="INSTANT", help="When it starts, RFC 3339.")
@click.option("--currency", required=True, help="Three capitals.")
@click.option("--seats", required=True, metavar="SEAT:PRICE,…", help="Each seat and its price in minor units.")
@click.option("--hold-seconds", type=click.IntRange(1), help="How long a reservation nobody pays is kept.")
@click.option("--key", help="The idempotency key; by default a new one.")
@json_option
def create(title: str, starts_at: str, currency: str, seats: str, hold_seconds: int | None, key: str | None) -> None:
    """Put a show on sale. Needs the scope operate."""
    body: dict[str, Any] = {"title": title, "starts_at": starts_at, "currency": currency, "seats": _seats(seats)}
    if hold_seconds is not None:
        body["hold_seconds"] = hold_seconds
    with _shop() as client:
        made = client.create_show(body, key or uuid4().hex)
    answer(made, lambda: facts(made.items()))


@show.command(name="list", epilog="Example: finaz show list --json")
@click.option("--limit", type=click.IntRange(1), default=LIMIT_DEFAULT, show_default=True, help="At most so many.")
@json_option
def list_shows(limit: int) -> None:
    """List shows, the newest first."""
    with _shop() as client:
        found = first(client.shows(limit + 1), limit)
    _table(("show_id", "title", "starts_at", "currency", "seat_count"), found)


@show.command(epilog="Example: finaz show seats show_…")
@click.argument("show_id")
@json_option
def seats(show_id: str) -> None:
    """Show the seats of SHOW_ID, as far as is known; a purchase never goes by this list."""
    with _shop() as client:
        found = client.availability(show_id)
    _table(("seat", "state", "price_minor", "currency"), found)


@click.group()
def purchase() -> None:
    """Buy seats, see how it goes, settle what the gateway left open."""


@purchase.command(
    name="create",
    epilog="Example: finaz purchase create show_… --seat A1 --email ana@example.org --payment-method pm_card",
)
@click.argument("show_id")
@click.option("--seat", "wanted", multiple=True, required=True, help="A seat; may stand several times.")
@click.option("--email", required=True, help="Where mails go; kept outside the log, can be erased.")
@click.option("--payment-method", required=True, help="The gateway's token for how it is paid.")
@click.option("--key", help="The idempotency key; by default a new one.")
@json_option
def create_purchase(show_id: str, wanted: tuple[str, ...], email: str, payment_method: str, key: str | None) -> None:
    """Reserve seats of SHOW_ID and begin to pay for them. Needs the scope purchases:write."""
    body = {"show_id": show_id, "seats": list(wanted), "email": email, "payment_method": payment_method}
    with _shop() as client:
        made = client.buy(body, key or uuid4().hex)
    answer(made, lambda: facts(made.items()))


@purchase.command(epilog="Example: finaz purchase status res_…")
@click.argument("purchase_id")
@json_option
def status(purchase_id: str) -> None:
    """Show PURCHASE_ID: its state, its timeline, and what happens next."""
    with _shop() as client:
        found = client.purchase(purchase_id)
    answer(found, lambda: _print(found))


@purchase.command(name="list", epilog="Example: finaz purchase list --state UNKNOWN")
@click.option("--state", help="Only in this state.")
@click.option("--limit", type=click.IntRange(1), default=LIMIT_DEFAULT, show_default=True, help="At most so many.")
@json_option
def list_purchases(state: str | None, limit: int) -> None:
    """List purchases, the newest first: your own, or with the scope operate everybody's."""
    with _shop() as client:
        found = first(client.purchases(state, limit + 1), limit)
    _table(("purchase_id", "state", "principal", "seats", "amount_minor", "currency", "alerts", "state_since"), found)


@purchase.command(epilog="Example: finaz purchase stuck --older 3600")
@click.option(
    "--older",
    type=click.IntRange(0),
    default=STUCK_SECONDS_DEFAULT,
    show_default=True,
    metavar="SECONDS",
    help="In their state for at least so long.",
)
@click.option("--limit", type=click.IntRange(1, 200), default=LIMIT_DEFAULT, show_default=True, help="At most so many.")
@json_option
def stuck(older: int, limit: int) -> None:
    """List purchases that do not end, or whose alerts nobody settled, the longest first. Needs the scope operate."""
    with _shop() as client:
        found = client.stuck(older, limit)
    _table(("purchase_id", "state", "age_seconds", "alerts", "amount_minor", "currency"), found)


@purchase.command(epilog="Example: finaz purchase settle res_… charged --note 'asked by phone, charge ch_1'")
@click.argument("purchase_id")
@click.argument("word", type=click.Choice(["charged", "not-charged", "refunded"]))
@click.option("--note", "text", metavar="TEXT", required=True, help="How you know; kept in the log with your name.")
@json_option
def settle(purchase_id: str, word: str, text: str) -> None:
    """Say what the gateway did for PURCHASE_ID, having asked it by hand. Needs the scope operate."""
    with _shop() as client:
        found = client.settle(purchase_id, word, text)
    answer(found, lambda: _print(found))


@purchase.command(epilog="Example: finaz purchase balances --json")
@json_option
def balances() -> None:
    """Show the ledger's balances. Needs the scope operate."""
    with _shop() as client:
        found = client.balances()
    _table(("currency", "accounts", "charges", "refunds"), found)


@purchase.command(epilog="Example: finaz purchase sales --show show_…")
@click.option("--show", "show_id", help="Only of this show.")
@click.option("--limit", type=click.IntRange(1, 200), default=LIMIT_DEFAULT, show_default=True, help="At most so many.")
@json_option
def sales(show_id: str | None, limit: int) -> None:
    """Show sales per day, the newest first. Needs the scope operate."""
    with _shop() as client:
        found = client.sales(show_id, limit)
    _table(("day", "show_id", "purchases", "seats", "revenue_minor", "currency", "cancelled"), found)


@purchase.command(name="erase-person", epilog="Example: finaz purchase erase-person ana@example.org")
@click.argument("email")
@json_option
def erase_person(email: str) -> None:
    """Erase the mail address EMAIL wherever it stands. Needs the scope operate. The purchases stay, without it."""
    with _shop() as client:
        found = client.erase_person(email)
    answer({"purchase_ids": found}, lambda: note(f"erased from {len(found)} purchases"))


@purchase.command(name="audit", epilog="Example: finaz purchase audit --json")
@json_option
def audit() -> int:
    """Compare ledger, reservations and the gateway's own books. Reads the database and asks the gateway of the settings."""
    from deployment.cli.output import EXIT_FAILED
    from deployment.purchase_wiring import audit_purchases
    from deployment.settings import load_settings

    report = audit_purchases(load_settings())
    found = [{"purchase_id": one.purchase_id, "what": one.what} for one in report.differences]
    agreed = {"purchases": report.purchases, "position": report.position, "gateway_asked": report.gateway_asked}
    answer({**agreed, "differences": found}, lambda: _show_audit(agreed, found))
    if not report.gateway_asked:
        note("the gateway was not asked: FINAZ_GATEWAY_URL is not set here")
    return EXIT_FAILED if found else 0


@click.command(name="sandbox-gateway", epilog="Example: finaz sandbox-gateway --port 8740 --file books.jsonl")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=8740, show_default=True, help="0 takes a free one.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="Where it keeps its books.")
@click.option("--webhook-url", help="Where its webhooks go.")
@click.option(
    "--hang-seconds", type=float, default=8.0, show_default=True, help="How long a call without answer hangs."
)
@click.option(
    "--lifeline", type=int, hidden=True, help="Inherited descriptor: it ends with whoever holds the other end."
)
@json_option
def sandbox_gateway(
    host: str, port: int, file: Path | None, webhook_url: str | None, hang_seconds: float, lifeline: int | None
) -> None:
    """Serve a payment gateway that can be told to misbehave. For tests and demos; it moves no money.

    Its key is FINAZ_GATEWAY_KEY, its webhooks are signed with FINAZ_GATEWAY_WEBHOOK_SECRET.
    """
    from deployment.gateway_sandbox import serve
    from deployment.settings import load_settings

    settings = load_settings()
    serve(
        host,
        port,
        settings.gateway_key or "sandbox",
        file=file,
        webhook_url=webhook_url,
        webhook_secret=settings.gateway_webhook_secret or "sandbox",
        hang_seconds=hang_seconds,
        on_ready=lambda url: json_line({"url": url}) if wants_json() else click.echo(url),
        lifeline=lifeline,
    )


def _shop() -> Any:
    from deployment.settings import load_client_settings
    from deployment.shop_client import ShopClient

    settings = load_client_settings()
    return ShopClient(settings.api_url, settings.token)


def _seats(text: str) -> list[dict[str, Any]]:
    made = []
    for part in text.split(","):
        seat, _, price = part.partition(":")
        if not (price.isascii() and price.isdigit()):
            raise click.BadParameter(
                f"{part!r} is not SEAT:PRICE; the price is in whole minor units, as in A1:4500", param_hint="--seats"
            )
        made.append({"seat": seat, "price_minor": int(price)})
    return made


def _show_audit(agreed: dict[str, Any], found: list[dict[str, Any]]) -> None:
    facts((name.replace("_", " "), value) for name, value in {**agreed, "differences": len(found)}.items())
    if found:
        _rows(("purchase_id", "what"), found)


def _next(found: dict[str, Any]) -> str:
    due = found["next_action"]
    if due is not None:
        return f"{due['action']} at {due['due_at']}"
    return "an operator settles it: finaz purchase settle --help" if found["alerts"] else "-"


def _print(found: dict[str, Any]) -> None:
    shown = {name: value for name, value in found.items() if name not in ("timeline", "next_action")}
    facts([*shown.items(), ("next", _next(found))])
    table(("at", "what", "detail"), [(e["at"], e["what"], e["detail"]) for e in found["timeline"]])


def _table(columns: tuple[str, ...], found: list[dict[str, Any]]) -> None:
    answer({"items": found}, lambda: _rows(columns, found))


def _rows(columns: tuple[str, ...], found: list[dict[str, Any]]) -> None:
    rows = [[one.get(column) for column in columns] for one in found]
    table([column.replace("_", " ") for column in columns], rows)

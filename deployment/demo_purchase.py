"""`finaz demo purchase`: three stories of purchases end to end and the counter-example, told step by step on embedded services.

The database, the API, the projector and the managers are started as `finaz up` does; the sandbox gateway and a mail server run as
real servers on loopback. Time is moved, not waited for: the business clock has an offset. Everything is removed at the end.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import msgspec

from deployment.settings import child_environment, load_settings
from deployment.shop_client import ShopClient
from deployment.shop_servers import GATEWAY_KEY, Offered, SandboxGateway, mail_server, shop_environment
from deployment.up import Machine, Plan, machine
from domain.errors import InfrastructureError

Say = Callable[[str], None]

WAIT_SECONDS_MAX: Final = 60.0
"""How long a state may take to come about."""

LOOK_SECONDS: Final = 0.1
"""Between two looks at a purchase."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """One story and whether it ended as it should; `found` says how it ended."""

    name: str
    held: bool
    found: str


class Story:
    """What the stories are told with."""

    def __init__(self, client: ShopClient, gateway: httpx.Client, dsn: str, mails: list[Offered], say: Say) -> None:
        self.client = client
        self.gateway = gateway
        self.mails = mails
        self.say = say
        self._dsn = dsn

    def show(self, seats: int) -> str:
        body = {
            "title": "Lohengrin",
            "starts_at": "2026-06-05T19:00:00Z",
            "currency": "EUR",
            "seats": [{"seat": f"A{n}", "price_minor": 4500} for n in range(seats)],
        }
        return str(self.client.create_show(body, f"show-{seats}")["show_id"])

    def buy(self, show_id: str, seat: str, method: str, who: str) -> str:
        body = {"show_id": show_id, "seats": [seat], "payment_method": method, "email": f"{who}@example.org"}
        made = self.client.buy(body, f"{who}-{seat}-{method}")
        self.say(f"  {who} reserves {seat}: {made['purchase_id']}")
        return str(made["purchase_id"])

    def until(self, purchase_id: str, *states: str, mail: str = "") -> dict[str, Any]:
        """The purchase as soon as it is in one of these states (and its mail has gone out)."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            found = self.client.purchase(purchase_id)
            sent = not mail or any(f"{purchase_id}.{mail}" in known.message_id for known in self.mails)
            if found["state"] in states and sent:
                return found
            if time.monotonic() > until:
                raise InfrastructureError(
                    f"the purchase is {found['state']}", at=purchase_id, expected=f"{' or '.join(states)} {mail}"
                )
            time.sleep(LOOK_SECONDS)

    def pass_time(self, seconds: float) -> None:
        """Let business time pass."""
        from services.business_clock import DatabaseBusinessClock
        from services.store.connections import Pool

        pool = Pool(self._dsn, 1)
        try:
            DatabaseBusinessClock(pool).advance(seconds)
        finally:
            pool.close()
        self.say(f"  {seconds:g} seconds of business time pass")

    def books(self) -> dict[str, Any]:
        """What the gateway really did."""
        books: dict[str, Any] = self.gateway.get("/sandbox/books").json()
        return books

    def seat(self, show_id: str, seat: str, state: str) -> str:
        """The seat's state in the list, which may need a moment to come about."""
        until = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            found = next(one["state"] for one in self.client.availability(show_id) if one["seat"] == seat)
            if found == state or time.monotonic() > until:
                return str(found)
            time.sleep(LOOK_SECONDS)

    def timeline(self, found: dict[str, Any]) -> None:
        for entry in found["timeline"]:
            self.say(f"    {entry['at']}  {entry['what']}  {entry['detail']}".rstrip())


def stories(story: Story) -> Iterator[Told]:
    """All of them, one after the other."""
    show = story.show(8)
    story.say(f"a show with eight seats is on sale: {show}")
    yield _paid(story, show)
    yield _declined(story, show)
    yield _timed_out(story, show)
    yield _blind(story, show)


def _paid(story: Story, show: str) -> Told:
    story.say("1. paid: the gateway says yes")
    purchase = story.buy(show, "A0", "pm_card", "ana")
    found = story.until(purchase, "CONFIRMED", mail="confirmed")
    story.timeline(found)
    charges = _calls(story, purchase, "charge")
    seat = story.seat(show, "A0", "SOLD")
    mails = sum(f"{purchase}.confirmed" in mail.message_id for mail in story.mails)
    return _told(
        "paid: CONFIRMED, one mail, seat sold", (found["state"], charges, mails, seat), ("CONFIRMED", 1, 1, "SOLD")
    )


def _declined(story: Story, show: str) -> Told:
    story.say("2. declined: the gateway says no")
    purchase = story.buy(show, "A1", "charge:decline", "bob")
    found = story.until(purchase, "COMPENSATED", mail="failed")
    story.timeline(found)
    seat = story.seat(show, "A1", "FREE")
    return _told("declined: compensated, failure mail, seat free", (found["state"], seat), ("COMPENSATED", "FREE"))


def _timed_out(story: Story, show: str) -> Told:
    story.say("3. timed out but charged: the gateway charges and says nothing")
    purchase = story.buy(show, "A2", "charge:timeout_after", "carl")
    found = story.until(purchase, "UNKNOWN")
    story.say(
        f"  UNKNOWN; next: {found['next_action']['action']} at {found['next_action']['due_at']}. Nothing is compensated blind."
    )
    story.pass_time(61)
    found = story.until(purchase, "CONFIRMED", mail="confirmed")
    story.timeline(found)
    seat = story.seat(show, "A2", "SOLD")
    charges = _calls(story, purchase, "charge")
    ended = (found["state"], charges, seat)
    return _told("timed out but charged: reconciled, one charge, seat sold", ended, ("CONFIRMED", 1, "SOLD"))


def _blind(story: Story, show: str) -> Told:
    story.say("4. the counter-example: what if silence had been taken for a no?")
    purchase = story.buy(show, "A3", "charge:timeout_after", "dora")
    story.until(purchase, "UNKNOWN")
    charged = _charged(story, purchase)
    story.say(f"  the gateway has charged dora: {charged}. Freeing the seat now would sell it to erik as well.")
    refused = ""
    try:
        story.buy(show, "A3", "pm_card", "erik")
    except Exception as error:  # the problem document of the API
        refused = getattr(error, "problem", {}).get("code", str(error))
    story.say(f"  erik asks for the seat and gets {refused}: while it is not known, the seat stays hers.")
    story.pass_time(61)
    found = story.until(purchase, "CONFIRMED")
    seat = story.seat(show, "A3", "SOLD")
    return _told(
        "not compensated blind: one buyer, one charge, one seat",
        (charged, refused, found["state"], seat),
        (True, "SEATS_TAKEN", "CONFIRMED", "SOLD"),
    )


def _calls(story: Story, purchase_id: str, name: str) -> int:
    return int(story.books()["calls"].count([name, f"int_{purchase_id}"]))


def _charged(story: Story, purchase_id: str) -> bool:
    charge = story.books()["charges"].get(f"int_{purchase_id}")
    return charge is not None and charge["outcome"] == "SUCCEEDED"


def _told(name: str, found: tuple[Any, ...], expected: tuple[Any, ...]) -> Told:
    return Told(name=name, held=found == expected, found=", ".join(map(str, found)))


# ------------------------------------------------------------------------------------------------ what they run on


def tell_stories(say: Say) -> list[Told]:
    """Start everything, tell the stories, end everything."""
    return asyncio.run(_tell(say))


async def _tell(say: Say) -> list[Told]:
    with mail_server() as (port, mails), SandboxGateway() as gateway:
        gateway_url = await asyncio.to_thread(gateway.start)
        async with shop_machine(gateway_url, port, say) as made:
            return await asyncio.to_thread(_told_by, made, gateway_url, mails, say)


def _told_by(made: Machine, gateway_url: str, mails: list[Offered], say: Say) -> list[Told]:
    headers = {"authorization": f"Bearer {GATEWAY_KEY}"}
    with (
        ShopClient(made.url, made.token) as client,
        httpx.Client(base_url=gateway_url, headers=headers, trust_env=False) as gateway,
    ):
        story = Story(client, gateway, made.dsn, mails, say)
        found = list(stories(story))
        from deployment.purchase_wiring import audit_purchases

        environment = shop_environment(gateway_url, 25) | {"FINAZ_POSTGRES_DSN": made.dsn}
        report = audit_purchases(load_settings(environment))
        what = "; ".join(one.what for one in report.differences) or f"{report.purchases} purchases agree"
        found.append(Told(name="audit of ledger, gateway and reservations", held=not report.differences, found=what))
        return found


@asynccontextmanager
async def shop_machine(gateway_url: str, smtp_port: int, say: Say) -> AsyncIterator[Machine]:
    """Everything on one machine, with a gateway and a mail server."""
    environment = {
        name: text
        for name, text in child_environment().items()
        if not name.startswith(("FINAZ_POSTGRES", "FINAZ_DATA_DIR"))
    }
    plan = Plan(environment=environment | shop_environment(gateway_url, smtp_port), workers=0, quiet=True)
    async with machine(plan, lambda event, **_: say(f"  ({event})")) as made:
        yield made

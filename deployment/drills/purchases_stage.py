"""The stage of the drill of purchases: buyers, kills, jumps of the business clock, operators, and what is looked at in the end.

What must stay true: a purchase counts as acknowledged only when its answer arrived; whoever got no answer asks again under the same
key; every wait is bounded; nothing is judged here.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import httpx
import msgspec

from deployment.drills.audited import audit_findings
from deployment.drills.database import Database
from deployment.drills.purchases_evidence import Asked, Word
from deployment.gateway_books import BEHAVIOURS
from deployment.problems import ProblemError
from deployment.purchase_wiring import audit_purchases
from deployment.settings import load_settings
from deployment.shop_client import ShopClient
from deployment.shop_servers import GATEWAY_KEY, SandboxGateway
from deployment.up import Machine
from domain.errors import InfrastructureError, WaitTimeoutError
from services.business_clock import DatabaseBusinessClock
from services.store.connections import Pool

VICTIMS: Final = ("manager", "manager-2", "api", "projector", "gateway", "postgres")
"""Who is killed, each at least once, in an order that the seed picks."""

AGAIN: Final = ("manager", "manager-2", "manager", "manager-2", "api", "projector")
"""Who is killed beyond that: a gateway that is mostly away would charge nobody."""

KILL_SECONDS: Final = (0.1, 0.7)
"""Seconds between two kills: a random time in between."""

KILLS_IN_A_ROW_MAX: Final = 8
"""Kills of one component in one storm: its supervisor must not give it up."""

GATEWAY_AWAY_SECONDS: Final = (0.0, 0.5)
"""How long a killed gateway stays away."""

JUMPS_SECONDS: Final = (0, 0, 1, 61, 121, 301, 1000)
"""How far the business clock jumps between two kills."""

BUYERS_AT_ONCE: Final = 8
SEATS_PER_BUYER: Final = 0.8
"""Seats on sale for each buyer: less than they want together, so that some are refused."""

ANSWER_SECONDS_MAX: Final = 60.0
"""How long a buyer asks again who gets no answer."""

STATE_SECONDS_MAX: Final = 60.0
"""How long a state may take to come about."""

QUIET_SECONDS_MAX: Final = 120.0
"""How long managers, relay and read models may take to do what is due."""

ROUNDS_MAX: Final = 30
"""Hours of business time in which everything must have come to its end."""

HOUR: Final = 3600.0
LOOK_SECONDS: Final = 0.05

CHARGES: Final = tuple(name for name in BEHAVIOURS if name != "other_amount")
"""How the gateway may behave. Another amount is an operator's affair and has tests of its own."""

PRICE_MINOR: Final = 1000

LOGGED: Final = ("position", "stream", "version", "topic", "recorded_at", "event")
"""What is kept of each event."""

Say = Callable[[str], None]


class Stage:
    """One show, its buyers, and those who make it hard for them."""

    def __init__(
        self, here: Machine, gateway: SandboxGateway, environment: Mapping[str, str], dice: random.Random, say: Say
    ) -> None:
        self.say = say
        self._here = here
        self._gateway = gateway
        self._environment = {**environment, "FINAZ_POSTGRES_DSN": here.dsn, "FINAZ_DATA_DIR": str(here.folder)}
        self._dice = dice
        self._asked: list[Asked] = []
        self._words: list[Word] = []
        self._kills: Counter[str] = Counter()
        self._show_id = ""
        self._seats: tuple[str, ...] = ()

    def client(self) -> ShopClient:
        """A client of our own; one thread at a time."""
        return ShopClient(self._here.url, self._here.token)

    def open(self, buyers: int) -> None:
        """Put the show on sale: seats for the storm, and some that are kept for what comes after it."""
        self._seats = tuple(f"A{n}" for n in range(max(2, int(buyers * SEATS_PER_BUYER))))
        kept = ["H0", *(f"L{n}" for n in range(3)), *(f"O{n}" for n in range(4))]
        seats = [{"seat": seat, "price_minor": PRICE_MINOR + n} for n, seat in enumerate((*self._seats, *kept))]
        terms = {"title": "Lohengrin", "starts_at": "2026-06-05T19:00:00Z", "currency": "EUR", "hold_seconds": 86_400}
        with self.client() as client:
            self._show_id = client.create_show({**terms, "seats": seats}, "drill")["show_id"]
            client.pause_projection("sales_per_day", "the drill sells while it is away")

    # ---------------------------------------------------------------- the storm

    def storm(self, buyers: int, kills: int) -> None:
        """Buyers buy while processes are killed and business time jumps."""
        wanted = [self._wish(number) for number in range(buyers)]
        order = [*VICTIMS, *(self._dice.choice(AGAIN) for _ in range(kills - len(VICTIMS)))]
        self._dice.shuffle(order)
        self.say(f"{buyers} buyers want {len(self._seats)} seats; {len(order)} kills")
        turns = threading.Semaphore(BUYERS_AT_ONCE)
        with ThreadPoolExecutor(BUYERS_AT_ONCE, thread_name_prefix="finaz-buyer") as threads:
            answers = [threads.submit(self._buy_in_turn, wish, turns) for wish in wanted]
            try:
                for victim in order:
                    time.sleep(self._dice.uniform(*KILL_SECONDS))
                    turns.release(-(-buyers // len(order)))
                    self._kill(victim)
                    self.advance(self._dice.choice(JUMPS_SECONDS))
            finally:
                turns.release(buyers)  # whatever happened, nobody waits for ever
            self._asked += [answer.result() for answer in answers]
        self.say(f"the storm is over; killed {', '.join(f'{name} {n}' for name, n in sorted(self._kills.items()))}")

    def _wish(self, number: int) -> Asked:
        """What a buyer wants, and how the gateway will behave about it."""
        behaviours = [
            ",".join(self._dice.choice(CHARGES) for _ in range(self._dice.randint(0, 3))) for _ in ("charge", "refund")
        ]
        return Asked(
            key=f"buyer-{number}",
            seats=tuple(sorted(self._dice.sample(self._seats, self._dice.randint(1, 2)))),
            payment_method=f"charge:{behaviours[0]};refund:{behaviours[1]}",
            email=f"buyer-{number}@example.org",
        )

    def _buy_in_turn(self, wish: Asked, turns: threading.Semaphore) -> Asked:
        """Some buyers come before each kill, however long the machine takes for it."""
        turns.acquire()
        return self._buy(wish)

    def _buy(self, wish: Asked) -> Asked:
        """Ask until there is an answer. Raises `WaitTimeoutError`."""
        body = {
            "show_id": self._show_id,
            "seats": list(wish.seats),
            "payment_method": wish.payment_method,
            "email": wish.email,
        }
        answered = self._answered(lambda client: str(client.buy(body, wish.key)["purchase_id"]))
        field = "purchase_id" if answered.startswith("res_") else "code"
        return msgspec.structs.replace(wish, **{field: answered})

    def _answered(self, ask: Callable[[ShopClient], str]) -> str:
        """The answer, or the code of a refusal, however often the API is away meanwhile."""
        until = time.monotonic() + ANSWER_SECONDS_MAX
        with self.client() as client:
            while True:
                try:
                    return ask(client)
                except (ProblemError, InfrastructureError) as error:
                    if isinstance(error, ProblemError) and error.problem.get("status", 500) < 500:
                        return str(error.problem["code"])
                    if time.monotonic() >= until:
                        raise WaitTimeoutError(f"nobody answered: {error}", at="drill") from error
                time.sleep(LOOK_SECONDS)

    def _kill(self, victim: str) -> None:
        if self._kills[victim] >= KILLS_IN_A_ROW_MAX:
            return
        with suppress(KeyError, ProcessLookupError):
            if victim == "gateway":
                self._gateway.kill()
                time.sleep(self._dice.uniform(*GATEWAY_AWAY_SECONDS))
                self._gateway.start()
            elif victim == "postgres":
                assert self._here.database is not None
                self._here.database.kill()
            else:
                os.kill(self._here.pids[victim], signal.SIGKILL)
            self._kills[victim] += 1

    def advance(self, seconds: float) -> None:
        """Move the business clock on. Raises `WaitTimeoutError` if the database stays away."""
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while seconds:
            pool = Pool(self._here.dsn, 1)
            try:
                DatabaseBusinessClock(pool).advance(seconds)
                return
            except InfrastructureError as error:
                if time.monotonic() >= until:
                    raise WaitTimeoutError(f"the database stayed away: {error}", at="drill") from error
                time.sleep(LOOK_SECONDS)
            finally:
                pool.close()

    # ---------------------------------------------------------------- what the storm may miss

    def late_charges(self) -> None:
        """Charges that the gateway makes when their purchases have come to nothing: they are told in the end, and refunded."""
        hidden = self._bought(["charge:not_found_early"], "H")
        self._until(hidden, "UNKNOWN")
        self.advance(61)
        with Database(self._here.dsn) as database:  # asked too early, the gateway finds nothing: nobody believes it
            database.wait("due_commands", _none, QUIET_SECONDS_MAX)
        late = [f"charge:late;refund:{self._dice.choice(CHARGES)}" for _ in range(3)]
        bought = self._bought(late, "L")
        self._until(bought, "UNKNOWN")
        self.advance(200)
        self._until(bought, "COMPENSATED")

    def outage(self) -> None:
        """The gateway is away for longer than was promised; operators say what it did, two of them at once."""
        methods = ["charge:timeout_after", "charge:timeout_before"] * 2
        bought = self._bought(methods, "O")
        self._until(bought, "UNKNOWN")
        self._gateway.kill()
        self.say("the gateway is away while business time passes")
        with Database(self._here.dsn) as database:
            for _ in range(ROUNDS_MAX):
                if all(self._state(purchase_id) == "UNKNOWN_EXPIRED" for purchase_id in bought):
                    break
                self.advance(HOUR)
                database.wait("due_commands", _none, QUIET_SECONDS_MAX)
        self._gateway.start()
        charged = self._books()["charges"]
        words = [(one, "charged" if f"int_{one}" in charged else "not-charged") for one in bought for _ in range(2)]
        with ThreadPoolExecutor(BUYERS_AT_ONCE) as threads:
            self._words += threads.map(lambda said: self._word(*said), words)

    def _word(self, purchase_id: str, word: str) -> Word:
        note = "asked the gateway by hand"
        answer = self._answered(lambda client: str(client.settle(purchase_id, word, note)["state"]))
        return Word(purchase_id=purchase_id, word=word, answer=answer)

    def _bought(self, methods: Iterable[str], row: str) -> list[str]:
        """Buy the seats of a row that is kept; the purchases."""
        wishes = [
            Asked(key=f"{row}{n}", seats=(f"{row}{n}",), payment_method=method, email=f"{row}{n}@example.org")
            for n, method in enumerate(methods)
        ]
        asked = [self._buy(wish) for wish in wishes]
        self._asked += asked
        return [one.purchase_id for one in asked]

    def _until(self, purchase_ids: Iterable[str], state: str) -> None:
        """Wait until all are in the state. Raises `WaitTimeoutError`."""
        until = time.monotonic() + STATE_SECONDS_MAX
        for purchase_id in purchase_ids:
            while (found := self._state(purchase_id)) != state:
                if time.monotonic() >= until:
                    raise WaitTimeoutError(f"the purchase is {found}", at=purchase_id, expected=state)
                time.sleep(LOOK_SECONDS)

    def _state(self, purchase_id: str) -> str:
        return self._answered(lambda client: str(client.purchase(purchase_id)["state"]))

    def _books(self) -> dict[str, Any]:
        """What the gateway has done so far."""
        found: dict[str, Any] = self._control("GET", "/sandbox/books")
        return found

    def _control(self, method: str, path: str) -> Any:
        headers = {"authorization": f"Bearer {GATEWAY_KEY}"}
        answer = httpx.request(
            method, self._gateway.url + path, headers=headers, timeout=ANSWER_SECONDS_MAX, trust_env=False
        )
        return answer.json()

    # ---------------------------------------------------------------- the end

    def settle(self) -> bool:
        """Let everything come to its end; whether it did."""
        self.say("waiting for everything to come to its end")
        with self.client() as client:
            client.resume_projection("sales_per_day")
        with Database(self._here.dsn) as database:
            for number in range(ROUNDS_MAX):
                if not self._quiet(database):
                    break
                if number == 1:
                    self._tell_all()  # what it did late, and everything again
                elif number > 1 and not any(row[0] == "payment" for row in database.rows("pending_commands")):
                    # Mails that were refused come again by the real clock.
                    written = database.wait("pending_commands", lambda rows: not rows, QUIET_SECONDS_MAX)
                    return written and database.wait("undelivered_notices", _none, QUIET_SECONDS_MAX)
                self.advance(HOUR)
            self.say(f"left: {database.rows('pending_commands')[:5]}")
        return False

    def _quiet(self, database: Database) -> bool:
        """Whether what is due was done, and everything has seen the whole log, within the time."""
        until = time.monotonic() + QUIET_SECONDS_MAX
        while time.monotonic() < until:
            waited = all(database.wait(name, _none, QUIET_SECONDS_MAX) for name in ("behind", "due_commands", "behind"))
            if waited and database.rows("due_commands") == [(0,)]:
                return True
        return False

    def _tell_all(self) -> None:
        """The gateway does what it put off, and tells of all its charges by webhook, again or at last."""
        self._control("POST", "/sandbox/settle-late")
        for intent_id in self._books()["charges"]:
            self._control("GET", f"/v1/charges/{intent_id}")  # whoever asks first may find nothing: not the audit
            self._control("POST", f"/sandbox/tell/{intent_id}")

    def gather(self) -> dict[str, Any]:
        """Everything that the checks look at."""
        settings = load_settings(self._environment)
        with self.client() as client, Database(self._here.dsn) as database:
            bodies = {one.key: one for one in self._asked if one.purchase_id}
            again = {key: self._buy(one) for key, one in bodies.items()}
            audit = audit_purchases(settings)
            return {
                "show_id": self._show_id,
                "seats": self._seats,
                "asked": tuple(
                    msgspec.structs.replace(one, again=again[one.key].purchase_id or again[one.key].code)
                    if one.purchase_id
                    else one
                    for one in self._asked
                ),
                "words": tuple(self._words),
                "kills": dict(self._kills),
                "served": {
                    "purchases": {one.purchase_id: client.purchase(one.purchase_id) for one in bodies.values()},
                    "seats": client.availability(self._show_id),
                    "balances": client.balances(),
                    "sales": client.sales(None, 200),
                },
                "audits": {
                    "purchases": tuple(f"{one.purchase_id}: {one.what}" for one in audit.differences),
                    "log": audit_findings(self._here, self.say),
                },
                "dead_letters": tuple(database.rows("dead_letters")),
                "log": tuple({name: event[name] for name in LOGGED} for event in client.log()),
            }


def _none(rows: list[tuple[Any, ...]]) -> bool:
    return rows == [(0,)]

"""Purchases, wired: what the API, the managers and the relay of one process are made of, as far as the settings name it.

What must stay true: without a gateway nothing is charged (purchases wait, PENDING, and expire as any that nobody pays); without a
mail server mails wait; no adapter is loaded that is not configured.
"""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from deployment.settings import Settings
from services.business_clock import DatabaseBusinessClock
from services.contacts import Contacts
from services.deals import Deals
from services.notice_relay import NAME as RELAY
from services.purchases import Purchases
from services.store.application import Log

__all__ = ["RELAY", "audit_purchases", "notice_relay", "purchase_managers", "purchases_of"]

if TYPE_CHECKING:
    from projections.runner import Report, Runner
    from services.process_managers.contract import ProcessManager
    from services.purchase_audit import PurchaseAudit


def purchases_of(settings: Settings, log: Log) -> Purchases:
    """The use cases of purchases."""
    webhooks = None
    if settings.gateway_webhook_secret is not None:
        from services.adapters.gateway_http import HmacWebhookReader

        webhooks = HmacWebhookReader(settings.gateway_webhook_secret)
    return Purchases(log, DatabaseBusinessClock(log.pool), Contacts(log.pool), webhooks)


def purchase_managers(settings: Settings, log: Log, stack: AsyncExitStack) -> list["ProcessManager"]:
    """The managers of payments and mails; what they open is closed by the stack."""
    from services.process_managers.payment import Payment
    from services.process_managers.purchase_mail import PurchaseMail

    deals = Deals(log, DatabaseBusinessClock(log.pool))
    gateway, mailer = None, None
    if settings.gateway_url is not None:
        from services.adapters.gateway_http import HttpGateway

        gateway = HttpGateway(
            settings.gateway_url, settings.gateway_key or "", answer_seconds_max=settings.gateway_timeout_seconds
        )
        stack.callback(gateway.close)
    if settings.smtp_host is not None:
        from services.adapters.mail_smtp import SmtpMailer

        mailer = SmtpMailer(settings.smtp_host, settings.smtp_port, settings.mail_sender)
    domain = settings.mail_sender.rpartition("@")[2] or "finaz.invalid"
    return [Payment(deals, gateway), PurchaseMail(deals, Contacts(log.pool), mailer, domain)]


def notice_relay(settings: Settings, log: Log, owner: str, report: "Report", stack: AsyncExitStack) -> "Runner":
    """The relay, to be run like a runner."""
    from deployment.broker_wiring import broker_opener
    from services.notice_relay import LogTeller, NoticeRelay, Teller
    from services.store.work_queue import OutboxQueue

    teller: Teller = LogTeller()
    open_broker = broker_opener(settings)
    if settings.notices_topic is not None and open_broker is not None:
        from services.adapters.notice_topic import TopicTeller

        topic = TopicTeller(open_broker, settings.notices_topic)
        stack.callback(topic.close)
        teller = topic
    relay: Any = NoticeRelay(
        log, OutboxQueue(log.hot_pool), teller, owner, poll_seconds=settings.projection_poll_seconds, report=report
    )
    return cast("Runner", relay)


def audit_purchases(settings: Settings) -> "PurchaseAudit":
    """The audit over the database of the settings; with a gateway, it is asked too."""
    from projections.inline import INLINE
    from services.adapters.gateway_http import HttpGateway
    from services.purchase_audit import audit

    log = Log(settings.required_postgres_dsn(), INLINE)
    gateway = None if settings.gateway_url is None else HttpGateway(settings.gateway_url, settings.gateway_key or "")
    try:
        return audit(log, gateway)
    finally:
        if gateway is not None:
            gateway.close()
        log.close()

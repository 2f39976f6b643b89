"""How commands reach the API and the blobs: where they are and who we are, from the settings of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from deployment.api_client import ApiBlobStore, ApiClient
from deployment.settings import load_client_settings, load_settings
from deployment.storage import blob_store, keeps_blobs
from services.ports import BlobStore

if TYPE_CHECKING:
    from deployment.operator_client import OperatorClient


def api() -> ApiClient:
    """A client of the API that FINAZ_API_URL names, with the token in FINAZ_TOKEN; use it as a context manager."""
    settings = load_client_settings()
    return ApiClient(settings.api_url, settings.token)


def operator_api() -> "OperatorClient":
    """As `api`, with what operators ask."""
    from deployment.operator_client import OperatorClient

    settings = load_client_settings()
    return OperatorClient(settings.api_url, settings.token)


def via_option(command: Any) -> Any:
    """The option `--via`, whose value is for `blobs`."""
    return click.option(
        "--via",
        type=click.Choice(["auto", "folder", "api"]),
        default="auto",
        show_default=True,
        help="Where the blobs are: the folder of the settings, or behind the API. auto: the folder if one is set.",
    )(command)


@contextmanager
def blobs(via: str) -> Iterator[BlobStore]:
    """The blob store that `--via` names."""
    settings = load_settings()
    if via == "folder" or (via == "auto" and keeps_blobs(settings)):
        yield blob_store(settings)
    else:
        with api() as client:
            yield ApiBlobStore(client)

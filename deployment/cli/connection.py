"""How commands reach the API: where it is and who we are, from the settings of this process."""

from deployment.api_client import ApiClient
from deployment.settings import load_client_settings


def api() -> ApiClient:
    """A client of the API that FINAZ_API_URL names, with the token in FINAZ_TOKEN; use it as a context manager."""
    settings = load_client_settings()
    return ApiClient(settings.api_url, settings.token)

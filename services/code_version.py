"""Which code computes: the name that a result carries of what made it.

The program's version, and a digest of the modules that decide values, so that two builds of one version which could differ in a
value have two names. What must stay true: it depends on the modules' text alone, not on where they are or when; worked out once.
"""

import hashlib
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Final

DISTRIBUTION: Final = "finaz-runtime"
PACKAGES: Final = ("domain.market", "domain.stream")
"""Where values are decided."""

DIGITS: Final = 16


@lru_cache(maxsize=1)
def code_version() -> str:
    """As `finaz-runtime 0.1.0+0123456789abcdef`; without a distribution at hand, `unknown` is the version."""
    try:
        program = version(DISTRIBUTION)
    except PackageNotFoundError:
        program = "unknown"
    return f"{DISTRIBUTION} {program}+{sources_digest()[:DIGITS]}"


def sources_digest() -> str:
    """SHA-256 over names and texts of the modules, in order of their names."""
    digest = hashlib.sha256()
    for package in PACKAGES:
        modules = (module for module in files(package).iterdir() if module.name.endswith(".py"))
        for module in sorted(modules, key=lambda module: module.name):
            text = module.read_bytes()
            digest.update(f"{package}.{module.name}\0{len(text)}\0".encode())
            digest.update(text)
    return digest.hexdigest()

"""What the domain's packages have: transition tables, found by looking, so that none can be forgotten in a list."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import domain
from domain.transitions import TransitionTable

NOT_STREAMS: frozenset[str] = frozenset()
"""Names of tables whose aggregate has no stream of its own."""


def transition_tables() -> dict[str, TransitionTable[Any]]:
    """Every transition table of the domain, by its name."""
    found: dict[str, TransitionTable[Any]] = {}
    for module in pkgutil.walk_packages(domain.__path__, "domain."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, TransitionTable):
                found[value.name] = value
    return found


def aggregates_without_fold(folds: Mapping[str, Any]) -> list[str]:
    """Names of tables that no category of streams is called by."""
    return sorted(set(transition_tables()) - set(folds) - NOT_STREAMS)

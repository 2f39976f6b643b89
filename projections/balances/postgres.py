"""Balances in PostgreSQL."""

from typing import Final

from projections.balances.projection import BalanceRow
from projections.postgres import RowStore, same

ROWS: Final = RowStore[str, BalanceRow, BalanceRow](__package__, BalanceRow, same, same, lambda row: row.currency)

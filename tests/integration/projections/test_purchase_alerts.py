"""Purchases that ask for an operator are found by an index, however many have ended well."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from projections.purchases.postgres import PurchasesReader, open_purchases

PURCHASES = 20_000
ALERTED = 4

FILL = """
INSERT INTO finaz.purchases_generations
SELECT 1, 'res_' || n, CASE WHEN mod(n, 5000) = 9 THEN 'UNKNOWN' ELSE 'CONFIRMED' END, 'ana', 'show_1', ARRAY['A1'], 100, 'EUR',
       CASE WHEN mod(n, 5000) = 7 THEN ARRAY['SECOND_CHARGE'] ELSE ARRAY[]::text[] END,
       now() - interval '1 day', now() - interval '1 day', n, n
FROM generate_series(1, %s) AS n
"""


class Explained:
    """A query whose plans are kept beside its answers."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._cursor = psycopg.ClientCursor(connection)
        self.plans: list[str] = []

    def rows(self, statement: str, arguments: Mapping[str, Any] | Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        explain = "EXPLAIN (ANALYZE, COSTS off, TIMING off, SUMMARY off) " + statement
        self._cursor.execute(explain.encode(), arguments)
        self.plans.append("\n".join(line for (line,) in self._cursor.fetchall()))
        self._cursor.execute(statement.encode(), arguments)
        return self._cursor.fetchall()


def test_what_asks_for_an_operator_is_not_searched_for(database: str) -> None:
    """Alerts, what is stuck, and the counts of what is open: no plan looks at a purchase that is at a good end."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(FILL, (PURCHASES,))
        connection.execute("VACUUM (ANALYZE) finaz.purchases_generations")
        query = Explained(connection)
        reader = PurchasesReader(query)
        alerted = reader.alerted(2**63 - 1, 50)
        assert [row.first_position for row in alerted] == [15_007, 10_007, 5_007, 7]
        assert [row.first_position for row in reader.alerted(10_007, 1)] == [5_007]
        assert len(reader.stuck(60, 50)) == 2 * ALERTED
        assert [(found.state, found.count) for found in open_purchases(query)] == [("UNKNOWN", ALERTED)]
        assert len(query.plans) == 4
        for plan in query.plans:
            assert "Seq Scan on purchases_g1" not in plan, plan
            removed = sum(int(line.rpartition(":")[2]) for line in plan.splitlines() if "Removed by Filter" in line)
            assert removed < 100, plan

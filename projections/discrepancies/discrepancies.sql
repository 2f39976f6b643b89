-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.subject = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, kind, subject) DO UPDATE SET
    state = excluded.state, expected = excluded.expected, actual = excluded.actual, outcome = excluded.outcome,
    principal = excluded.principal, times_found = excluded.times_found, found_at = excluded.found_at,
    changed_at = excluded.changed_at, first_position = excluded.first_position, position = excluded.position

-- name: list
-- Newest first, before a position of first finding; of one state, if it is given.
SELECT row_to_json(r)::text FROM finaz.discrepancies AS r
WHERE r.first_position < %(before)s AND (%(state)s::text IS NULL OR r.state = %(state)s::text)
ORDER BY r.first_position DESC
LIMIT %(limit)s

-- name: open
-- What is not settled, by kind.
SELECT r.kind, r.state, count(*) FROM finaz.discrepancies AS r WHERE r.state <> 'SETTLED' GROUP BY r.kind, r.state

-- name: all
SELECT row_to_json(r)::text FROM finaz.discrepancies AS r

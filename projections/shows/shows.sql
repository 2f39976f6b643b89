-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.show_id = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, show_id) DO UPDATE SET
    title = excluded.title, starts_at = excluded.starts_at, currency = excluded.currency, seat_count = excluded.seat_count,
    hold_seconds = excluded.hold_seconds, first_position = excluded.first_position, position = excluded.position

-- name: all
SELECT row_to_json(r)::text FROM finaz.shows AS r


-- name: list
-- Newest first, before a position.
SELECT row_to_json(r)::text FROM finaz.shows AS r
WHERE r.first_position < %(before)s
ORDER BY r.first_position DESC
LIMIT %(limit)s

-- name: get
SELECT row_to_json(r)::text FROM finaz.shows AS r WHERE r.show_id = %(show_id)s

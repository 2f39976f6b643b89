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
ON CONFLICT (generation, day, show_id, currency) DO UPDATE SET
    purchases = excluded.purchases, seats = excluded.seats, revenue_minor = excluded.revenue_minor,
    cancelled = excluded.cancelled, position = excluded.position

-- name: all
SELECT row_to_json(r)::text FROM finaz.sales_per_day AS r


-- name: list
-- By day, the newest first; of one show, if it is given.
SELECT row_to_json(r)::text FROM finaz.sales_per_day AS r
WHERE %(show_id)s::text IS NULL OR r.show_id = %(show_id)s::text
ORDER BY r.day DESC, r.show_id, r.currency
LIMIT %(limit)s

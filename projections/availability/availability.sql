-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND (r.show_id, r.seat) IN (
    SELECT split_part(k, '/', 1), substr(k, strpos(k, '/') + 1) FROM unnest(%(keys)s::text[]) AS k
)

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, show_id, seat) DO UPDATE SET
    state = excluded.state, price_minor = excluded.price_minor, currency = excluded.currency,
    purchase_id = excluded.purchase_id, first_position = excluded.first_position, position = excluded.position

-- name: all
SELECT row_to_json(r)::text FROM finaz.availability AS r


-- name: of_show
-- The seats of a show, in the order in which they were offered.
SELECT row_to_json(r)::text FROM finaz.availability AS r WHERE r.show_id = %(show_id)s ORDER BY r.first_position

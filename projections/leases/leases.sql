-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.resource = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)), %(rows)s::json
) AS n
ON CONFLICT (generation, resource) DO UPDATE SET
    state = excluded.state, owner = excluded.owner, label = excluded.label, token = excluded.token,
    expires_at = excluded.expires_at, granted_at = excluded.granted_at, changed_at = excluded.changed_at,
    first_position = excluded.first_position, position = excluded.position

-- name: get
-- Whether a lease is live is judged here, by the database's clock, and not stored.
SELECT row_to_json(r)::text, r.state = 'GRANTED' AND clock_timestamp() < r.expires_at
FROM finaz.leases AS r
WHERE r.resource = %(resource)s

-- name: list
SELECT row_to_json(r)::text, r.state = 'GRANTED' AND clock_timestamp() < r.expires_at
FROM finaz.leases AS r
WHERE r.first_position > %(after)s
  AND (%(live)s::boolean IS NULL OR %(live)s::boolean = (r.state = 'GRANTED' AND clock_timestamp() < r.expires_at))
ORDER BY r.first_position
LIMIT %(limit)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.leases AS r

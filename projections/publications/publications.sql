-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.run_id = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, run_id, output) DO UPDATE SET
    artifact = excluded.artifact, values_hash = excluded.values_hash, rows = excluded.rows, schema = excluded.schema,
    flow = excluded.flow, inputs = excluded.inputs, fence_token = excluded.fence_token, published_at = excluded.published_at,
    position = excluded.position

-- name: of_run
SELECT row_to_json(r)::text FROM finaz.publications AS r WHERE r.run_id = %(run_id)s ORDER BY r.position

-- name: list
-- A page in the order of publication, after a position.
SELECT row_to_json(r)::text FROM finaz.publications AS r
WHERE r.position > %(after)s AND (%(artifact)s::text IS NULL OR r.artifact = %(artifact)s::text)
ORDER BY r.position
LIMIT %(limit)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.publications AS r

-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.job_id = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)), %(rows)s::json
) AS n
ON CONFLICT (generation, job_id) DO UPDATE SET
    kind = excluded.kind, target = excluded.target, state = excluded.state, job = excluded.job,
    first_position = excluded.first_position, position = excluded.position

-- name: list
-- Newest first, before a position of being asked for; of one state or kind, if given.
SELECT row_to_json(r)::text FROM finaz.jobs AS r
WHERE r.first_position < %(before)s
  AND (%(state)s::text IS NULL OR r.state = %(state)s::text)
  AND (%(kind)s::text IS NULL OR r.kind = %(kind)s::text)
ORDER BY r.first_position DESC
LIMIT %(limit)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.jobs AS r

-- name: load
-- `{copy}` is the table of one generation; a key is `run_id/partition/offset`.
SELECT row_to_json(r)::text FROM {copy} AS r
JOIN unnest(%(keys)s::text[]) AS k(key)
    ON r.run_id = split_part(k.key, '/', 1)
   AND r.partition = split_part(k.key, '/', 2)::integer
   AND r."offset" = split_part(k.key, '/', 3)::bigint
WHERE r.generation = %(generation)s

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, run_id, partition, "offset") DO UPDATE SET
    state = excluded.state, detail = excluded.detail, terminal = excluded.terminal, quarantine = excluded.quarantine,
    event_id = excluded.event_id, revision = excluded.revision, event_time = excluded.event_time,
    requested = excluded.requested, requested_by = excluded.requested_by, requested_at = excluded.requested_at,
    retries = excluded.retries, retried_at = excluded.retried_at, recorded_at = excluded.recorded_at,
    first_position = excluded.first_position, position = excluded.position

-- name: list
-- In the order of partitions and offsets, behind a place; in one state, if it is given.
SELECT row_to_json(r)::text FROM finaz.quarantine AS r
WHERE r.run_id = %(run_id)s AND (r.partition, r."offset") > (%(partition)s, %(offset)s)
  AND (%(state)s::text IS NULL OR r.state = %(state)s::text)
ORDER BY r.partition, r."offset"
LIMIT %(limit)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.quarantine AS r

-- name: load
-- `{copy}` is the table of one generation; a key is `run_id/epoch`.
SELECT row_to_json(r)::text FROM {copy} AS r
JOIN unnest(%(keys)s::text[]) AS k(key) ON r.run_id = split_part(k.key, '/', 1) AND r.epoch = split_part(k.key, '/', 2)::bigint
WHERE r.generation = %(generation)s

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, run_id, epoch) DO UPDATE SET
    token = excluded.token, manifest = excluded.manifest, manifest_hash = excluded.manifest_hash,
    next_offsets = excluded.next_offsets, committed_at = excluded.committed_at, position = excluded.position

-- name: list
-- Newest first, before an epoch.
SELECT row_to_json(r)::text FROM finaz.checkpoints AS r
WHERE r.run_id = %(run_id)s AND r.epoch < %(before)s
ORDER BY r.epoch DESC
LIMIT %(limit)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.checkpoints AS r

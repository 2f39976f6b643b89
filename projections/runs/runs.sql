-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.run_id = ANY (%(keys)s::text[])

-- name: save
-- Rows come as JSON and take the columns' types; the generation is the same for all.
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)), %(rows)s::json
) AS n
ON CONFLICT (generation, run_id) DO UPDATE SET
    state = excluded.state, run_revision = excluded.run_revision, principal = excluded.principal, mode = excluded.mode,
    flow = excluded.flow, flow_name = excluded.flow_name, snapshot = excluded.snapshot, as_of = excluded.as_of,
    tags = excluded.tags, priority = excluded.priority, deadline_seconds = excluded.deadline_seconds,
    deadline_at = excluded.deadline_at, body_hash = excluded.body_hash, sweep_id = excluded.sweep_id,
    attempts = excluded.attempts, failures = excluded.failures, token = excluded.token, owner = excluded.owner,
    cancellation_requested = excluded.cancellation_requested, errors = excluded.errors, results = excluded.results,
    requested_at = excluded.requested_at, started_at = excluded.started_at, finished_at = excluded.finished_at,
    requested_position = excluded.requested_position, position = excluded.position,
    topic = excluded.topic, bounded = excluded.bounded, continues = excluded.continues, schedule = excluded.schedule

-- name: get
SELECT row_to_json(r)::text FROM finaz.runs AS r WHERE r.run_id = %(run_id)s

-- name: list
-- A page, newest first, and the position it shows: one statement, one snapshot. `requested_position` never changes, so runs that
-- arrive or change meanwhile neither repeat a row on a later page nor hide one.
WITH served AS MATERIALIZED (
    SELECT p.generation, p.position FROM finaz.projections AS p WHERE p.name = 'runs' AND p.role = 'active'
)
SELECT (SELECT served.position FROM served),
       (SELECT json_agg(row_to_json(page) ORDER BY page.requested_position DESC)::text
        FROM (
            SELECT * FROM finaz.runs_generations AS r
            WHERE r.generation = (SELECT served.generation FROM served) {conditions}
            ORDER BY r.requested_position DESC
            LIMIT %(limit)s
        ) AS page)

-- name: where_before
AND r.requested_position < %(before)s

-- name: where_principal
AND r.principal = %(principal)s

-- name: where_states
AND r.state = ANY (%(states)s::text[])

-- name: where_tags
AND r.tags @> %(tags)s::text[]

-- name: where_mode
AND r.mode = %(mode)s

-- name: where_sweep_id
AND r.sweep_id = %(sweep_id)s

-- name: where_requested_from
AND r.requested_at >= %(requested_from)s

-- name: where_requested_to
AND r.requested_at < %(requested_to)s

-- name: all
SELECT row_to_json(r)::text FROM finaz.runs AS r

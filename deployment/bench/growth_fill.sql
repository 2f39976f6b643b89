-- Statements that give a log a past, for `growth.py`. Put in directly: chain values are of no use and nobody notifies.

-- name: fill_events
-- The seven events of one finished run, again for each number, under ids and streams of their own.
INSERT INTO finaz.events (
        position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal, state, chain)
    SELECT m.head + (n - %(first)s) * 7 + t.place, t.version, t.recorded_at, gen_random_uuid(), t.causation_id,
           CASE WHEN t.stream LIKE 'admission/%%' THEN 'admission/' || i.id ELSE replace(t.stream, t.id, i.id) END,
           t.topic, replace(t.correlation_id, t.id, i.id), t.principal, replace(t.state, t.id, i.id), sha256(n::text::bytea)
    FROM (SELECT coalesce(max(position), 0) AS head FROM finaz.events) AS m
    CROSS JOIN generate_series(%(first)s::bigint, %(last)s::bigint) AS n
    CROSS JOIN LATERAL (SELECT encode(sha256(n::text::bytea), 'hex') AS id) AS i
    CROSS JOIN (
        SELECT e.*, right(%(run_id)s, 64) AS id, row_number() OVER (ORDER BY e.position) AS place
        FROM finaz.events AS e WHERE e.correlation_id = %(run_id)s
    ) AS t

-- name: fill_outbox
INSERT INTO finaz.outbox (
        kind, key, lane, priority, state, enqueued_position, enqueued_at, due_at, position, changed_at)
    SELECT o.kind, 'run_' || encode(sha256(n::text::bytea), 'hex'), o.lane, o.priority, o.state, o.enqueued_position + n * 7,
           o.enqueued_at, o.due_at, o.position + n * 7, o.changed_at
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n CROSS JOIN finaz.outbox AS o
    WHERE o.key = %(run_id)s

-- name: fill_lease_guard
INSERT INTO finaz.lease_guard (resource, owner, token, expires_at, released, position)
    SELECT 'run_' || encode(sha256(n::text::bytea), 'hex'), g.owner, g.token, g.expires_at, g.released, g.position + n * 7
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n CROSS JOIN finaz.lease_guard AS g
    WHERE g.resource = %(run_id)s

-- name: a_finished_run
SELECT key FROM finaz.outbox WHERE state = 'delivered' LIMIT 1

-- name: high_water_mark
SELECT coalesce(max(position), 0) FROM finaz.events

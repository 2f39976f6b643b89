-- Reading the log and what stands beside it. Each statement under its name; `%(name)s` are its arguments.

-- name: append
SELECT head, recorded_at, verdicts, repeated_positions, repeated_at
FROM finaz.append_v2(
    %s::smallint[], string_to_array(%s, E'\x1f', E'\x1e'), string_to_array(%s, E'\x1f', E'\x1e'), %s::bigint[],
    string_to_array(%s, E'\x1f', E'\x1e'), %s::bigint[], %s::uuid[],
    %s::integer[], string_to_array(%s, E'\x1f'), %s::bigint[], %s::uuid[], string_to_array(%s, E'\x1f'), string_to_array(%s, E'\x1f'),
    %s::uuid[], string_to_array(%s, E'\x1f', E'\x1e'), string_to_array(%s, E'\x1f', E'\x1e'),
    %s::integer[], %s::integer[], string_to_array(%s, E'\x1f'), string_to_array(%s, E'\x1f'), %s::bigint[], %s::bigint[], %s::boolean[],
    %s::integer[], string_to_array(%s, E'\x1f'), string_to_array(%s, E'\x1f'), string_to_array(%s, E'\x1f'), %s::bigint[],
    string_to_array(%s, E'\x1f', E'\x1e'), %s::integer[]
)

-- name: read_streams
SELECT c.now, e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal
FROM (SELECT clock_timestamp() AS now) AS c
LEFT JOIN finaz.events AS e ON e.stream = ANY (%(streams)s::text[])
ORDER BY e.stream, e.version

-- name: read_log
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal
FROM finaz.events
WHERE position > %(after)s
ORDER BY position
LIMIT %(limit)s

-- name: read_log_topics
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal
FROM finaz.events
WHERE position > %(after)s AND topic = ANY (%(topics)s::text[])
ORDER BY position
LIMIT %(limit)s

-- name: high_water_mark
SELECT coalesce(max(position), 0) FROM finaz.events

-- name: now
SELECT clock_timestamp()

-- name: read_state
WITH taken AS (
    SELECT s.version, s.state FROM finaz.snapshots AS s
    WHERE s.stream = %(stream)s AND s.topic = %(topic)s ORDER BY s.version DESC LIMIT 1
)
SELECT c.now, t.version AS taken_version, t.state AS taken_state,
       e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal
FROM (SELECT clock_timestamp() AS now) AS c
LEFT JOIN taken AS t ON true
LEFT JOIN LATERAL (
    SELECT * FROM finaz.events AS e WHERE e.stream = %(stream)s AND e.version > coalesce(t.version, -1)
) AS e ON true
ORDER BY e.version

-- name: take_snapshot
INSERT INTO finaz.snapshots (stream, version, topic, state) VALUES (%(stream)s, %(version)s, %(topic)s, %(state)s)
ON CONFLICT (stream, version, topic) DO NOTHING

-- name: drop_snapshots_before
DELETE FROM finaz.snapshots WHERE stream = %(stream)s AND version < %(version)s AND topic LIKE %(name)s

-- name: insert_snapshots
INSERT INTO finaz.snapshots (stream, version, topic, state)
SELECT * FROM unnest(%(streams)s::text[], %(versions)s::bigint[], %(topics)s::text[], %(states)s::text[])

-- name: select_snapshots
SELECT stream, version, topic, state FROM finaz.snapshots
WHERE stream = %(stream)s AND version > %(gt)s AND version <= %(lte)s
ORDER BY version
LIMIT %(limit)s

-- name: select_snapshots_desc
SELECT stream, version, topic, state FROM finaz.snapshots
WHERE stream = %(stream)s AND version > %(gt)s AND version <= %(lte)s
ORDER BY version DESC
LIMIT %(limit)s

-- name: select_events
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal FROM finaz.events
WHERE stream = %(stream)s AND version > %(gt)s AND version <= %(lte)s
ORDER BY version
LIMIT %(limit)s

-- name: select_events_desc
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal FROM finaz.events
WHERE stream = %(stream)s AND version > %(gt)s AND version <= %(lte)s
ORDER BY version DESC
LIMIT %(limit)s

-- name: select_notifications
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal FROM finaz.events
WHERE position >= %(start)s AND position <= %(stop)s
ORDER BY position
LIMIT %(limit)s

-- name: select_notifications_topics
SELECT position, stream, version, event_id, topic, state, recorded_at, causation_id, correlation_id, principal FROM finaz.events
WHERE position >= %(start)s AND position <= %(stop)s AND topic = ANY (%(topics)s::text[])
ORDER BY position
LIMIT %(limit)s

-- name: tracking_position
SELECT position FROM finaz.tracking WHERE name = %(name)s

-- name: claim
-- Become the one session that works on this copy, if nobody is: the lock goes with the session. Says so with a heartbeat.
WITH claim AS MATERIALIZED (
    SELECT pg_try_advisory_lock(hashtextextended('finaz.projections/' || %(name)s || '/' || %(role)s, 0)) AS granted
)
UPDATE finaz.projections AS p SET owner = %(owner)s, heartbeat_at = clock_timestamp()
FROM claim
WHERE claim.granted AND p.name = %(name)s AND p.role = %(role)s
RETURNING p.generation

-- name: heartbeat
SELECT owner, heartbeat_at FROM finaz.projections WHERE name = %(name)s AND role = %(role)s

-- name: evict
-- End the session that holds the claim: its owner is stopped or hangs, and its transaction must not outlive its claim.
SELECT pg_terminate_backend(l.pid)
FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  AND ((l.classid::bigint << 32) | l.objid::bigint)
      = hashtextextended('finaz.projections/' || %(name)s || '/' || %(role)s, 0)

-- name: look
SELECT p.generation, p.position, p.state, (SELECT coalesce(max(e.position), 0) FROM finaz.events AS e)
FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = %(role)s

-- name: beat
-- The same, with a sign of life.
UPDATE finaz.projections AS p SET owner = %(owner)s, heartbeat_at = clock_timestamp()
WHERE p.name = %(name)s AND p.role = %(role)s
RETURNING p.generation, p.position, p.state, (SELECT coalesce(max(e.position), 0) FROM finaz.events AS e)

-- name: read
-- Events of some categories in a range of positions, in order.
SELECT e.position, e.stream, e.version, e.event_id, e.recorded_at, e.topic, e.state, e.causation_id, e.correlation_id, e.principal
FROM finaz.events AS e
WHERE e.position > %(after)s AND e.position <= %(up_to)s AND split_part(e.stream, '/', 1) = ANY (%(categories)s::text[])
ORDER BY e.position
LIMIT %(limit)s

-- name: lock
SELECT p.generation, p.position, p.state FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = %(role)s
FOR UPDATE

-- name: move
-- Compare and set: no row means that somebody else has moved it.
UPDATE finaz.projections AS p
SET position = %(up_to)s, moved_at = clock_timestamp(), heartbeat_at = clock_timestamp(), owner = %(owner)s
WHERE p.name = %(name)s AND p.generation = %(generation)s AND p.position = %(from)s

-- name: stop
UPDATE finaz.projections AS p
SET state = 'stopped', error_position = %(error_position)s, error_stream = %(error_stream)s, error_topic = %(error_topic)s,
    error_code = %(error_code)s, error_reason = %(error_reason)s, error_at = clock_timestamp()
WHERE p.name = %(name)s AND p.generation = %(generation)s

-- name: revive
-- A stopped copy may try again: an operator said so, or a process has started with code that may be new.
UPDATE finaz.projections AS p
SET state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL,
    error_at = NULL
WHERE p.name = %(name)s AND p.role = %(role)s AND p.state = 'stopped'

-- name: pause
UPDATE finaz.projections AS p SET state = 'paused', pause_reason = %(reason)s, paused_by = %(principal)s
WHERE p.name = %(name)s AND p.role = 'active' AND p.state = 'running'

-- name: resume
UPDATE finaz.projections AS p
SET state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL,
    error_at = NULL, pause_reason = NULL, paused_by = NULL
WHERE p.name = %(name)s AND p.role = 'active'

-- name: position
SELECT p.position FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role = 'active'

-- name: high_water_mark
SELECT coalesce(max(e.position), 0) FROM finaz.events AS e

-- name: status
-- The oldest event not yet applied is found by the primary key, so this costs the same however long the log is.
WITH mark AS MATERIALIZED (SELECT coalesce(max(e.position), 0) AS position FROM finaz.events AS e)
SELECT p.name, p.generation, p.state, p.position, mark.position AS high_water_mark,
       extract(epoch FROM clock_timestamp() - oldest.recorded_at)::double precision AS lag_seconds,
       p.owner, p.heartbeat_at, extract(epoch FROM clock_timestamp() - p.heartbeat_at)::double precision AS heartbeat_age_seconds,
       p.moved_at, p.error_position, p.error_stream, p.error_topic, p.error_code, p.error_reason, p.error_at,
       b.generation AS building_generation, b.position AS building_position, p.pause_reason, p.paused_by
FROM finaz.projections AS p
CROSS JOIN mark
LEFT JOIN finaz.projections AS b ON b.name = p.name AND b.role = 'building'
LEFT JOIN LATERAL (
    SELECT e.recorded_at FROM finaz.events AS e WHERE e.position > p.position ORDER BY e.position LIMIT 1
) AS oldest ON true
WHERE p.role = 'active'
ORDER BY p.name

-- name: claim_rebuild
SELECT pg_try_advisory_lock(hashtextextended('finaz.projections/' || %(name)s || '/building', 0))

-- name: let_go_rebuild
SELECT pg_advisory_unlock_all()

-- name: insert_building
INSERT INTO finaz.projections (name, generation, role, owner)
SELECT %(name)s, max(p.generation) + 1, 'building', %(owner)s FROM finaz.projections AS p WHERE p.name = %(name)s
RETURNING generation

-- name: wait_little
-- Who waits for a lock lets nobody pass: give up soon, and try again.
SET LOCAL lock_timeout = '100ms'

-- name: delete_unserved
-- Copies that nobody reads: retired ones, and what a rebuild that died has left.
DELETE FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role <> 'active' RETURNING p.generation

-- name: lock_served
-- Its runner cannot commit from here on, so that the swap happens at one position.
SELECT p.position, p.generation FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role = 'active' FOR UPDATE

-- name: retire
UPDATE finaz.projections AS p SET role = 'retired' WHERE p.name = %(name)s AND p.role = 'active'

-- name: activate
-- What an operator had paused stays paused; the runner, if there is one, is still the one of the copy that was served.
UPDATE finaz.projections AS p
SET role = 'active', state = CASE WHEN served.state = 'paused' THEN 'paused' ELSE 'running' END,
    owner = served.owner, heartbeat_at = served.heartbeat_at, pause_reason = served.pause_reason, paused_by = served.paused_by
FROM finaz.projections AS served
WHERE p.name = %(name)s AND p.role = 'building' AND served.name = p.name AND served.generation = %(served)s
RETURNING p.generation, p.position

-- name: create_copy
CREATE TABLE {copy} (LIKE {table} INCLUDING ALL EXCLUDING INDEXES) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)

-- name: key_of_copy
SELECT pg_get_constraintdef(c.oid) FROM pg_constraint AS c WHERE c.conrelid = %(table)s::regclass AND c.contype = 'p'

-- name: add_key
ALTER TABLE {copy} ADD {key}

-- name: attach_copy
ALTER TABLE {table} ATTACH PARTITION {copy} FOR VALUES IN ({generation})

-- name: drop_copy
DROP TABLE IF EXISTS {copy}

-- name: take_touched
-- In the temporary tables of an inline rebuild: what events have touched is to be compared again.
INSERT INTO pg_temp.todo SELECT t.* FROM pg_temp.touched AS t

-- name: forget_touched
DELETE FROM pg_temp.touched

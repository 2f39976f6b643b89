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
-- Where an operator wants it to stop, the log ends for it.
SELECT p.generation, p.position, p.state,
       least((SELECT coalesce(max(e.position), 0) FROM finaz.events AS e), p.stop_at), p.code_version
FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = %(role)s

-- name: beat
-- The same, with a sign of life; every ten seconds it is reckoned how fast the copy moves.
UPDATE finaz.projections AS p
SET owner = %(owner)s, heartbeat_at = clock_timestamp(),
    events_per_second = CASE WHEN clock_timestamp() < p.window_at + interval '10 seconds' THEN p.events_per_second
        ELSE (p.position - p.window_position) / extract(epoch FROM clock_timestamp() - p.window_at)::double precision END,
    window_position = CASE WHEN clock_timestamp() < p.window_at + interval '10 seconds' THEN p.window_position ELSE p.position END,
    window_at = CASE WHEN clock_timestamp() < p.window_at + interval '10 seconds' THEN p.window_at ELSE clock_timestamp() END
WHERE p.name = %(name)s AND p.role = %(role)s
RETURNING p.generation, p.position, p.state,
    least((SELECT coalesce(max(e.position), 0) FROM finaz.events AS e), p.stop_at), p.code_version

-- name: read
-- Events of some categories in a range of positions, in order, but for those that an operator has had this projection pass over.
-- OFFSET 0 has the planner take the range alone, by its index: of how many events are of these categories it has no idea, and where
-- it guesses few it reads and sorts the whole range for each batch.
SELECT e.position, e.stream, e.version, e.event_id, e.recorded_at, e.topic, e.state, e.causation_id, e.correlation_id, e.principal
FROM (
    SELECT r.position, r.stream, r.version, r.event_id, r.recorded_at, r.topic, r.state, r.causation_id, r.correlation_id, r.principal
    FROM finaz.events AS r
    WHERE r.position > %(after)s AND r.position <= %(up_to)s
    ORDER BY r.position
    OFFSET 0
) AS e
WHERE split_part(e.stream, '/', 1) = ANY (%(categories)s::text[])
  AND e.position <> ALL (ARRAY(SELECT s.position FROM finaz.projection_skips AS s WHERE s.name = %(name)s))
ORDER BY e.position
LIMIT %(limit)s

-- name: lock
SELECT p.generation, p.position, p.state FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = %(role)s
FOR UPDATE

-- name: move
-- Compare and set: no row means that somebody else has moved it. Where an operator wanted it to stop, it pauses.
UPDATE finaz.projections AS p
SET position = %(up_to)s, moved_at = clock_timestamp(), heartbeat_at = clock_timestamp(), owner = %(owner)s,
    state = CASE WHEN p.stop_at <= %(up_to)s THEN 'paused' ELSE p.state END,
    stop_at = CASE WHEN p.stop_at <= %(up_to)s THEN NULL ELSE p.stop_at END
WHERE p.name = %(name)s AND p.generation = %(generation)s AND p.position = %(from)s

-- name: stop
-- What stops by itself is in the projection's log as what operators do is.
WITH logged AS (
    INSERT INTO finaz.projection_log (name, action, principal, reason, position)
    SELECT %(name)s, CASE c.role WHEN 'active' THEN 'stopped' ELSE 'rebuild-stopped' END, '',
           %(error_code)s || ' at ' || %(error_topic)s || ' of ' || %(error_stream)s || ': ' || %(error_reason)s, %(error_position)s
    FROM finaz.projections AS c WHERE c.name = %(name)s AND c.generation = %(generation)s
)
UPDATE finaz.projections AS p
SET state = 'stopped', error_position = %(error_position)s, error_stream = %(error_stream)s, error_topic = %(error_topic)s,
    error_code = %(error_code)s, error_reason = %(error_reason)s, error_at = clock_timestamp()
WHERE p.name = %(name)s AND p.generation = %(generation)s

-- name: trouble
-- The last fault of the infrastructure that kept the runner from working; it works again.
UPDATE finaz.projections AS p
SET trouble_code = %(code)s, trouble_reason = %(reason)s, trouble_at = clock_timestamp()
WHERE p.name = %(name)s AND p.role = %(role)s

-- name: revive
-- A stopped copy may try again: an operator said so, or a process has started with code that may be new.
UPDATE finaz.projections AS p
SET state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL,
    error_at = NULL
WHERE p.name = %(name)s AND p.role = %(role)s AND p.state = 'stopped'

-- name: pause
-- One that is paused, or stopped by itself, stays as it is; then nothing is logged.
WITH paused AS (
    UPDATE finaz.projections AS p SET state = 'paused', pause_reason = %(reason)s, paused_by = %(principal)s
    WHERE p.name = %(name)s AND p.role = 'active' AND p.state = 'running'
    RETURNING p.position
)
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
SELECT %(name)s, 'pause', %(principal)s, %(reason)s, paused.position FROM paused

-- name: resume
WITH resumed AS (
    UPDATE finaz.projections AS p
    SET state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL,
        error_at = NULL, pause_reason = NULL, paused_by = NULL, stop_at = NULL
    WHERE p.name = %(name)s AND p.role = 'active'
    RETURNING p.position
)
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
SELECT %(name)s, 'resume', %(principal)s, '', resumed.position FROM resumed

-- name: stop_at
-- No row: it is there or beyond already.
WITH told AS (
    UPDATE finaz.projections AS p SET stop_at = %(position)s, pause_reason = %(reason)s, paused_by = %(principal)s
    WHERE p.name = %(name)s AND p.role = 'active' AND p.state = 'running' AND p.position < %(position)s
    RETURNING p.position
)
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
SELECT %(name)s, 'stop-at', %(principal)s, %(reason)s, %(position)s FROM told
RETURNING position

-- name: skip
-- Exactly the event at which it stopped, and no other. No row: it does not stand there.
WITH stopped AS (
    UPDATE finaz.projections AS p
    SET state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL,
        error_at = NULL
    FROM (SELECT s.* FROM finaz.projections AS s WHERE s.name = %(name)s AND s.role = 'active' FOR UPDATE) AS s
    WHERE p.name = s.name AND p.generation = s.generation AND s.state = 'stopped' AND s.error_topic <> ''
      AND s.error_position = %(position)s
    RETURNING s.error_stream, s.error_topic, s.error_code
), skipped AS (
    INSERT INTO finaz.projection_skips (name, position, stream, topic, code, principal, reason)
    SELECT %(name)s, %(position)s, stopped.error_stream, stopped.error_topic, stopped.error_code, %(principal)s, %(reason)s FROM stopped
)
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
SELECT %(name)s, 'skip', %(principal)s, %(reason)s, %(position)s FROM stopped
RETURNING position

-- name: event_at
SELECT e.stream, e.topic, e.state FROM finaz.events AS e WHERE e.position = %(position)s

-- name: skip_inline
-- An inline projection stands nowhere; what only its rebuild meets is passed over there.
WITH skipped AS (
    INSERT INTO finaz.projection_skips (name, position, stream, topic, code, principal, reason)
    VALUES (%(name)s, %(position)s, %(stream)s, %(topic)s, %(code)s, %(principal)s, %(reason)s)
    ON CONFLICT DO NOTHING
    RETURNING position
)
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
SELECT %(name)s, 'skip', %(principal)s, %(reason)s, skipped.position FROM skipped

-- name: skips_counted
-- How many events each projection passes over.
SELECT s.name, count(*)::integer FROM finaz.projection_skips AS s GROUP BY s.name

-- name: skipped
SELECT s.position, s.stream, s.topic, s.code, s.principal, s.reason, s.skipped_at
FROM finaz.projection_skips AS s WHERE s.name = %(name)s ORDER BY s.position

-- name: note
INSERT INTO finaz.projection_log (name, action, principal, reason, position)
VALUES (%(name)s, %(action)s, %(principal)s, %(reason)s, %(position)s)

-- name: entries
-- What was done to it, the newest first, before an entry.
SELECT l.id, l.name, l.action, l.principal, l.reason, l.position, l.at
FROM finaz.projection_log AS l WHERE l.name = %(name)s AND l.id < %(before)s ORDER BY l.id DESC LIMIT %(limit)s

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
       b.generation AS building_generation, b.position AS building_position, p.pause_reason, p.paused_by,
       p.code_version, p.stop_at,
       CASE WHEN p.heartbeat_at > clock_timestamp() - interval '60 seconds' THEN p.events_per_second ELSE 0 END AS events_per_second,
       p.trouble_code, p.trouble_reason, p.trouble_at, r.generation AS retired_generation, r.drop_after,
       (SELECT count(*) FROM finaz.projection_skips AS s WHERE s.name = p.name)::integer AS skipped
FROM finaz.projections AS p
CROSS JOIN mark
LEFT JOIN finaz.projections AS b ON b.name = p.name AND b.role = 'building'
LEFT JOIN LATERAL (
    SELECT o.generation, o.drop_after FROM finaz.projections AS o WHERE o.name = p.name AND o.role = 'retired'
    ORDER BY o.generation DESC LIMIT 1
) AS r ON true
LEFT JOIN LATERAL (
    SELECT e.recorded_at FROM finaz.events AS e WHERE e.position > p.position ORDER BY e.position LIMIT 1
) AS oldest ON true
WHERE p.role = 'active'
ORDER BY p.name

-- name: claim_rebuild
SELECT pg_try_advisory_lock(hashtextextended('finaz.projections/' || %(name)s || '/building', 0))

-- name: evict_rebuild
-- End the session that builds, if we hold the lease of the job: whoever holds the claim then was overtaken.
SELECT pg_terminate_backend(l.pid)
FROM pg_locks AS l
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
  AND ((l.classid::bigint << 32) | l.objid::bigint) = hashtextextended('finaz.projections/' || %(name)s || '/building', 0)
  AND EXISTS (
      SELECT FROM finaz.lease_guard AS g
      WHERE g.resource = %(job_id)s AND g.owner = %(owner)s AND g.token = %(token)s AND NOT g.released
        AND clock_timestamp() < g.expires_at
  )

-- name: fence
-- A row: the lease of the job is ours and live.
SELECT g.token FROM finaz.lease_guard AS g
WHERE g.resource = %(job_id)s AND g.owner = %(owner)s AND g.token = %(token)s AND NOT g.released AND clock_timestamp() < g.expires_at

-- name: let_go_rebuild
SELECT pg_advisory_unlock_all()

-- name: repeatable
-- Everything that this transaction reads is of one instant; nobody is held up by that.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: take_long
-- Building indexes and comparing may take longer than a runner's statements.
SET LOCAL statement_timeout = '1h'

-- name: insert_building
INSERT INTO finaz.projections (name, generation, role, owner, job_id, job_token, code_version)
SELECT %(name)s, max(p.generation) + 1, 'building', %(owner)s, %(job_id)s, %(token)s, %(code_version)s
FROM finaz.projections AS p WHERE p.name = %(name)s
RETURNING generation

-- name: adopt_building
-- The copy that an attempt before us began: from here on, that attempt cannot switch to it any more.
UPDATE finaz.projections AS p
SET owner = %(owner)s, job_token = %(token)s, state = 'running', error_position = NULL, error_stream = NULL, error_topic = NULL,
    error_code = NULL, error_reason = NULL, error_at = NULL
WHERE p.name = %(name)s AND p.role = 'building' AND p.job_id = %(job_id)s AND p.job_token <= %(token)s
  AND p.code_version = %(code_version)s
RETURNING p.generation

-- name: take_retired
-- The old copy is built on, as if it were new.
UPDATE finaz.projections AS p
SET role = 'building', owner = %(owner)s, job_id = %(job_id)s, job_token = %(token)s, state = 'running', error_position = NULL,
    error_stream = NULL, error_topic = NULL, error_code = NULL, error_reason = NULL, error_at = NULL
WHERE p.name = %(name)s AND p.role = 'retired'
  AND p.generation = (SELECT max(r.generation) FROM finaz.projections AS r WHERE r.name = %(name)s AND r.role = 'retired')
RETURNING p.code_version

-- name: retired
SELECT p.code_version FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = 'retired' ORDER BY p.generation DESC LIMIT 1

-- name: wait_little
-- Who waits for a lock lets nobody pass: give up soon, and try again.
SET LOCAL lock_timeout = '100ms'

-- name: delete_building
-- What is built, or what a rebuild that died has left.
DELETE FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role = 'building' AND p.drop_after IS NULL RETURNING p.generation

-- name: retire_building
-- An old copy that was to be served again, and is not.
UPDATE finaz.projections AS p SET role = 'retired' WHERE p.name = %(name)s AND p.role = 'building' AND p.drop_after IS NOT NULL

-- name: delete_retired
-- Old copies: all; those whose time is over; or all but the latest.
DELETE FROM finaz.projections AS p
WHERE p.name = %(name)s AND p.role = 'retired'
  AND CASE %(which)s WHEN 'all' THEN true WHEN 'expired' THEN p.drop_after <= clock_timestamp()
      ELSE p.generation < (SELECT max(r.generation) FROM finaz.projections AS r WHERE r.name = p.name AND r.role = 'retired') END
RETURNING p.generation

-- name: beside
-- Copies that are built beside what is served, and the job that each is for.
SELECT p.name, p.job_id FROM finaz.projections AS p WHERE p.role = 'building' AND p.job_id IS NOT NULL ORDER BY p.name

-- name: expired
-- Projections with an old copy whose time is over.
SELECT DISTINCT p.name FROM finaz.projections AS p WHERE p.role = 'retired' AND p.drop_after <= clock_timestamp() ORDER BY p.name

-- name: served
SELECT p.generation, p.position, p.state, p.job_id FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role = 'active'

-- name: lock_served
-- Its runner cannot commit from here on, so that the swap happens at one position.
SELECT p.position, p.generation FROM finaz.projections AS p WHERE p.name = %(name)s AND p.role = 'active' FOR UPDATE

-- name: retire
UPDATE finaz.projections AS p
SET role = 'retired', drop_after = clock_timestamp() + make_interval(secs => %(keep_seconds)s::double precision)
WHERE p.name = %(name)s AND p.role = 'active'

-- name: activate
-- What an operator had paused stays paused; the runner, if there is one, is still the one of the copy that was served. No row: the
-- copy is another attempt's by now.
UPDATE finaz.projections AS p
SET role = 'active', state = CASE WHEN served.state = 'paused' THEN 'paused' ELSE 'running' END, drop_after = NULL,
    stop_at = CASE WHEN served.stop_at > p.position THEN served.stop_at END,
    owner = served.owner, heartbeat_at = served.heartbeat_at, pause_reason = served.pause_reason, paused_by = served.paused_by
FROM finaz.projections AS served
WHERE p.name = %(name)s AND p.role = 'building' AND p.job_id = %(job_id)s AND p.job_token = %(token)s
  AND served.name = p.name AND served.generation = %(served)s
RETURNING p.generation, p.position

-- name: is_attached
SELECT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = %(copy)s::regclass)

-- name: indexes
-- The other indexes of a read model than that of its key, as they are created.
SELECT pg_get_indexdef(i.indexrelid)
FROM pg_index AS i WHERE i.indrelid = %(table)s::regclass AND NOT i.indisprimary ORDER BY i.indexrelid

-- name: create_copy
-- The check spares attaching it a look at every row.
CREATE TABLE {copy} (LIKE {table} INCLUDING ALL EXCLUDING INDEXES, CHECK (generation = {generation})) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05)

-- name: key_of_copy
SELECT pg_get_constraintdef(c.oid) FROM pg_constraint AS c WHERE c.conrelid = %(table)s::regclass AND c.contype = 'p'

-- name: add_key
ALTER TABLE {copy} ADD {key}

-- name: create_index
{create} INDEX IF NOT EXISTS {index} ON {copy} USING {what}

-- name: attach_copy
ALTER TABLE {table} ATTACH PARTITION {copy} FOR VALUES IN ({generation})

-- name: drop_copy
DROP TABLE IF EXISTS {copy}

-- name: take_touched
-- In the temporary tables of an inline rebuild: what events have touched is to be compared again.
INSERT INTO pg_temp.todo SELECT t.* FROM pg_temp.touched AS t ON CONFLICT DO NOTHING

-- name: forget_touched
DELETE FROM pg_temp.touched

-- name: forget_chunk
DELETE FROM pg_temp.chunk

-- name: forget_todo
DELETE FROM pg_temp.todo

-- name: count_todo
SELECT count(*) FROM pg_temp.todo

-- name: count_touched
SELECT count(*) FROM pg_temp.touched

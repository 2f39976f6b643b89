-- name: load
SELECT row_to_json(i)::text FROM finaz.manager_instances AS i
WHERE i.manager = %(manager)s AND i.key = ANY (%(keys)s::text[])

-- name: all
-- `{manager}` is a literal: audits read without arguments.
SELECT row_to_json(i)::text FROM finaz.manager_instances AS i WHERE i.manager = {manager}

-- name: save_instances
-- Instances that remember something are upserted, forgotten ones removed.
WITH given AS (
    SELECT n.key, n.position, n.state, n.deadlines, n.forgotten
    FROM json_to_recordset(%(rows)s::json) AS n(key text, position bigint, state json, deadlines json, forgotten boolean)
), removed AS (
    DELETE FROM finaz.manager_instances AS i USING given AS g
    WHERE g.forgotten AND i.manager = %(manager)s AND i.key = g.key
)
INSERT INTO finaz.manager_instances (manager, key, state, deadlines, position)
SELECT %(manager)s, g.key, g.state, g.deadlines, g.position FROM given AS g WHERE NOT g.forgotten
ON CONFLICT (manager, key) DO UPDATE SET
    state = excluded.state, deadlines = excluded.deadlines, position = excluded.position

-- name: withdraw_deadlines
-- Pending deadlines of these instances that they no longer want.
DELETE FROM finaz.manager_commands AS c
WHERE c.manager = %(manager)s AND c.key = ANY (%(keys)s::text[]) AND c.state = 'pending' AND c.deadline
  AND c.command_id <> ALL (%(kept)s::uuid[])

-- name: save_commands
-- What is wanted; what was stored before, issued or not, stays as it is.
INSERT INTO finaz.manager_commands (manager, command_id, key, name, document, deadline, state, due_at, caused_by, reason)
SELECT %(manager)s, n.command_id, n.key, n.name, n.document, n.deadline,
       CASE WHEN n.reason IS NULL THEN 'pending' ELSE 'dead' END, n.due_at, n.caused_by, n.reason
FROM json_to_recordset(%(commands)s::json) AS n(
    command_id uuid, key text, name text, document json, deadline boolean, due_at timestamptz, caused_by uuid, reason text)
ORDER BY n.command_id
ON CONFLICT (manager, command_id) DO NOTHING

-- name: due
-- `{now}` is the clock that the manager names.
SELECT c.command_id, c.key, c.name, c.document::text, c.attempts
FROM finaz.manager_commands AS c
WHERE c.manager = %(manager)s AND c.state = 'pending' AND c.due_at <= {now}
ORDER BY c.due_at, c.command_id
LIMIT %(limit)s

-- name: next_due
-- Null if nothing is pending: greatest() would pass over it and say 0, and an idle manager would never rest.
SELECT CASE WHEN min(c.due_at) IS NOT NULL
            THEN greatest(0, extract(epoch FROM min(c.due_at) - {now}))::double precision END
FROM finaz.manager_commands AS c
WHERE c.manager = %(manager)s AND c.state = 'pending'

-- name: issued
-- From pending to issued; whoever is second changes nothing.
UPDATE finaz.manager_commands AS c
SET state = 'issued', changed_at = clock_timestamp()
WHERE c.manager = %(manager)s AND c.command_id = ANY (%(command_ids)s::uuid[]) AND c.state = 'pending'

-- name: again
UPDATE finaz.manager_commands AS c
SET attempts = 0, reason = NULL, document = %(document)s::json, changed_at = clock_timestamp(),
    due_at = {now} + make_interval(secs => %(delay_seconds)s)
WHERE c.manager = %(manager)s AND c.command_id = %(command_id)s AND c.state = 'pending'

-- name: set_aside
UPDATE finaz.manager_commands AS c
SET state = 'dead', reason = %(reason)s, attempts = c.attempts + 1, changed_at = clock_timestamp()
WHERE c.manager = %(manager)s AND c.command_id = %(command_id)s AND c.state = 'pending'

-- name: retry
UPDATE finaz.manager_commands AS c
SET attempts = c.attempts + 1, reason = %(reason)s, changed_at = clock_timestamp(),
    due_at = {now} + make_interval(secs => %(delay_seconds)s)
WHERE c.manager = %(manager)s AND c.command_id = %(command_id)s AND c.state = 'pending'

-- name: dead_letters
SELECT c.manager, c.command_id, c.key, c.name, c.document::text, c.attempts, c.reason, c.caused_by, c.changed_at
FROM finaz.manager_commands AS c
WHERE c.state = 'dead' AND (%(manager)s::text IS NULL OR c.manager = %(manager)s)
ORDER BY c.changed_at, c.command_id
LIMIT %(limit)s

-- name: revive
-- A dead letter is tried again, as if it had never failed.
UPDATE finaz.manager_commands AS c
SET state = 'pending', attempts = 0, due_at = clock_timestamp(), changed_at = clock_timestamp(), principal = %(principal)s
WHERE c.manager = %(manager)s AND c.command_id = %(command_id)s AND c.state = 'dead' AND c.name <> 'react'
RETURNING c.command_id

-- name: dead_letter
SELECT c.manager, c.command_id, c.key, c.name, c.document::text, c.attempts, c.reason, c.caused_by, c.changed_at
FROM finaz.manager_commands AS c
WHERE c.state = 'dead' AND c.manager = %(manager)s AND c.command_id = %(command_id)s

-- name: revive_all
UPDATE finaz.manager_commands AS c
SET state = 'pending', attempts = 0, due_at = clock_timestamp(), changed_at = clock_timestamp(), principal = %(principal)s
WHERE c.manager = %(manager)s AND c.state = 'dead' AND c.name <> 'react'
RETURNING c.command_id

-- name: discard
UPDATE finaz.manager_commands AS c
SET state = 'discarded', reason = %(reason)s, principal = %(principal)s, changed_at = clock_timestamp()
WHERE c.manager = %(manager)s AND c.command_id = %(command_id)s AND c.state = 'dead'
RETURNING c.command_id

-- name: pending
SELECT count(*), count(*) FILTER (WHERE c.due_at <= clock_timestamp())
FROM finaz.manager_commands AS c WHERE c.manager = %(manager)s AND c.state = 'pending'

-- name: replay
-- Back to position 0 in one statement: instances and pending commands go, outcomes stay. Only while it is paused.
WITH reset AS (
    UPDATE finaz.projections AS p SET position = 0, moved_at = clock_timestamp()
    WHERE p.name = %(manager)s AND p.role = 'active' AND p.state = 'paused'
    RETURNING p.name
), instances AS (
    DELETE FROM finaz.manager_instances AS i USING reset WHERE i.manager = reset.name
), commands AS (
    DELETE FROM finaz.manager_commands AS c USING reset WHERE c.manager = reset.name AND c.state = 'pending'
)
SELECT count(*) FROM reset

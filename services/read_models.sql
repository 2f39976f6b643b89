-- name: runs_by_state
SELECT r.state, count(*) FROM finaz.runs AS r GROUP BY r.state ORDER BY r.state

-- name: streams_unowned
-- STREAM runs under way that nobody works on now, by the guard of leases, which is never behind.
SELECT count(*) FROM finaz.runs AS r
WHERE r.mode = 'STREAM' AND r.state = 'RUNNING' AND NOT EXISTS (
    SELECT FROM finaz.lease_guard AS g
    WHERE g.resource = r.run_id AND NOT g.released AND g.expires_at > clock_timestamp()
)

-- name: queue
-- What waits and what is being worked on; delivered items only ever grow in number and stand in no queue.
SELECT o.kind, o.state, count(*) FROM finaz.outbox AS o WHERE o.state IN ('pending', 'claimed') GROUP BY o.kind, o.state ORDER BY 1, 2

-- name: discrepancies
-- What was found and is not settled; a partial index keeps this as small as what it counts.
SELECT d.kind, d.state, count(*) FROM finaz.discrepancies AS d WHERE d.state <> 'SETTLED' GROUP BY d.kind, d.state

-- name: dead_letters
SELECT c.manager, count(*) FROM finaz.manager_commands AS c WHERE c.state = 'dead' GROUP BY c.manager

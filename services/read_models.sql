-- name: runs_by_state
SELECT r.state, count(*) FROM finaz.runs AS r GROUP BY r.state ORDER BY r.state

-- name: queue
-- What waits and what is being worked on; delivered items only ever grow in number and stand in no queue.
SELECT o.kind, o.state, count(*) FROM finaz.outbox AS o WHERE o.state IN ('pending', 'claimed') GROUP BY o.kind, o.state ORDER BY 1, 2

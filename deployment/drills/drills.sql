-- name: claimed
-- Who executes runs right now: the label that its worker was given, and how many runs it has claimed and not ended.
SELECT e.state::json ->> 'label' AS label, count(*)
FROM finaz.outbox AS o
JOIN finaz.lease_guard AS g ON g.resource = o.key
JOIN finaz.events AS e ON e.stream = 'lease/' || o.key AND e.topic = 'lease.granted.v1'
    AND (e.state::json ->> 'token')::bigint = g.token
WHERE o.kind = 'run' AND o.state = 'claimed'
GROUP BY 1 ORDER BY 2 DESC

-- name: now
SELECT clock_timestamp()

-- name: unfinished
SELECT count(*) FROM finaz.outbox AS o WHERE o.state <> 'delivered'

-- name: behind
-- Read models and process managers that have not seen the whole log.
SELECT count(*) FROM finaz.projections AS p
WHERE p.role = 'active' AND p.position < (SELECT coalesce(max(e.position), 0) FROM finaz.events AS e)

-- name: alerts
SELECT d.kind, d.subject, d.outcome FROM finaz.discrepancies AS d WHERE d.state = 'ALERTED' ORDER BY d.first_position

-- name: dead_letters
SELECT c.manager, c.name, c.key, c.reason FROM finaz.manager_commands AS c WHERE c.state = 'dead' ORDER BY c.changed_at

-- name: due_verifications
SELECT count(*) FROM finaz.manager_commands AS c WHERE c.state = 'pending' AND c.name = 'verify'

-- name: sessions
-- How many sessions there are of an application.
SELECT count(*) FROM pg_stat_activity AS a WHERE a.application_name = %(application)s

-- name: due_commands
-- Of purchases: what managers have to do now, each by its own clock.
SELECT count(*) FROM finaz.manager_commands AS c
WHERE c.state = 'pending' AND (
    (c.manager = 'payment' AND c.due_at <= finaz.business_now())
    OR (c.manager = 'purchase_mail' AND c.due_at <= clock_timestamp()))

-- name: pending_commands
-- Of purchases: what managers have still to do, now or later.
SELECT c.manager, c.name, c.key, c.attempts, c.reason FROM finaz.manager_commands AS c
WHERE c.state = 'pending' AND c.manager IN ('payment', 'purchase_mail')
ORDER BY c.due_at

-- name: undelivered_notices
SELECT count(*) FROM finaz.outbox AS o WHERE o.kind = 'notice' AND o.state <> 'delivered'

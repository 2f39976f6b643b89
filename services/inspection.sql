-- Looking at the log. Every statement probes indexes and is bounded by a limit, so its price does not grow with the log.

-- name: streams
-- The streams of a range of names, each found by one probe behind the one before; never a look at all their events.
WITH RECURSIVE walk AS (
    (
        SELECT e.stream, 1 AS n FROM finaz.events AS e
        WHERE e.stream > %(after)s AND e.stream >= %(prefix)s AND e.stream < %(end)s
        ORDER BY e.stream LIMIT 1
    )
    UNION ALL
    SELECT following.stream, w.n + 1
    FROM walk AS w
    CROSS JOIN LATERAL (
        SELECT e.stream FROM finaz.events AS e WHERE e.stream > w.stream AND e.stream < %(end)s ORDER BY e.stream LIMIT 1
    ) AS following
    WHERE w.n < %(limit)s
)
SELECT w.stream, last.version, first.position, first.recorded_at, last.position, last.recorded_at, last.topic
FROM walk AS w
CROSS JOIN LATERAL (
    SELECT e.position, e.recorded_at FROM finaz.events AS e WHERE e.stream = w.stream ORDER BY e.version LIMIT 1
) AS first
CROSS JOIN LATERAL (
    SELECT e.version, e.position, e.recorded_at, e.topic FROM finaz.events AS e
    WHERE e.stream = w.stream ORDER BY e.version DESC LIMIT 1
) AS last
ORDER BY w.stream

-- name: read_forward
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM finaz.events AS e
WHERE e.stream = %(stream)s AND e.version > %(beyond)s
ORDER BY e.version
LIMIT %(limit)s

-- name: read_backward
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM finaz.events AS e
WHERE e.stream = %(stream)s AND e.version < %(beyond)s
ORDER BY e.version DESC
LIMIT %(limit)s

-- name: event
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM finaz.events AS e
WHERE e.event_id = %(event_id)s

-- name: effects
-- What any of some events caused directly, by position.
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM finaz.events AS e
WHERE e.causation_id = ANY (%(event_ids)s::uuid[])
ORDER BY e.position
LIMIT %(limit)s

-- name: position_at
-- The first position recorded at or after an instant, by halving: positions are given in the order of the database's clock.
WITH RECURSIVE halving AS (
    SELECT 1::bigint AS low, (SELECT coalesce(max(e.position), 0) + 1 FROM finaz.events AS e) AS high
    UNION ALL
    SELECT CASE WHEN at.recorded_at < %(instant)s THEN at.position + 1 ELSE h.low END,
           CASE WHEN at.recorded_at < %(instant)s THEN h.high ELSE (h.low + h.high) / 2 END
    FROM halving AS h
    CROSS JOIN LATERAL (
        SELECT e.position, e.recorded_at FROM finaz.events AS e
        WHERE e.position >= (h.low + h.high) / 2 ORDER BY e.position LIMIT 1
    ) AS at
    WHERE h.low < h.high
)
SELECT max(h.low) FROM halving AS h

-- name: living
-- Jobs that have not ended, the oldest first: the last event of their slot took it. Found by the log's own index, slot by slot, so
-- that a read model that stands still keeps no job from being found, and a long past costs nothing.
WITH RECURSIVE slots (stream) AS (
    (SELECT e.stream FROM finaz.events AS e WHERE e.stream >= 'job_slot/' AND e.stream < 'job_slot0' ORDER BY e.stream LIMIT 1)
    UNION ALL
    SELECT (
        SELECT e.stream FROM finaz.events AS e WHERE e.stream > s.stream AND e.stream < 'job_slot0' ORDER BY e.stream LIMIT 1
    )
    FROM slots AS s WHERE s.stream IS NOT NULL
)
SELECT last.document::json ->> 'kind', last.document::json ->> 'target', last.document::json ->> 'job_id'
FROM slots AS s
CROSS JOIN LATERAL (
    SELECT e.topic, e.state AS document, e.position FROM finaz.events AS e
    WHERE e.stream = s.stream ORDER BY e.version DESC LIMIT 1
) AS last
WHERE last.topic = 'job_slot.taken.v1'
ORDER BY last.position
LIMIT %(limit)s

-- name: living
-- Jobs that have not ended, the oldest first: the last event of their slot took it. Found by the log's own index, so that a read
-- model that stands still keeps no job from being found.
SELECT last.document::json ->> 'kind', last.document::json ->> 'target', last.document::json ->> 'job_id'
FROM (
    SELECT DISTINCT ON (e.stream) e.stream, e.topic, e.state AS document, e.position
    FROM finaz.events AS e
    WHERE e.stream >= 'job_slot/' AND e.stream < 'job_slot0'
    ORDER BY e.stream, e.version DESC
) AS last
WHERE last.topic = 'job_slot.taken.v1'
ORDER BY last.position
LIMIT %(limit)s

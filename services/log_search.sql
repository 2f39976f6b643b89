-- Searching the log. An event is looked for through one of the conditions, which we choose, not the planner: conditions depend on each
-- other (a topic has its principals), and a plan that takes them for independent reads the whole log.
--
-- `{driver}` is one of the pieces `of_…`, `{conditions}` are pieces `is_…`, `{order}` is ASC or DESC. Rows of two columns are compared
-- and both are sorted by, though the first is one value: so only the index of both serves, and only its entries from `first` to `last`.

-- name: found
-- Those that the driver finds, where nothing else is asked for.
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM {driver} AS e
ORDER BY e.position {order}
LIMIT %(limit)s

-- name: examined
-- How many the driver finds, up to a limit, the first and the last position among them, and the positions where everything holds.
SELECT count(*), min(e.position), max(e.position),
       coalesce((array_agg(e.position ORDER BY e.position {order}) FILTER (WHERE {conditions}))[1:%(page)s], '{}')
FROM {driver} AS e

-- name: counted
SELECT count(*) FROM {driver} AS e

-- name: at_positions
SELECT e.position, e.stream, e.version, e.event_id, e.topic, e.state, e.recorded_at, e.causation_id, e.correlation_id, e.principal, e.chain
FROM finaz.events AS e
WHERE e.position = ANY (%(positions)s::bigint[])
ORDER BY e.position {order}

-- name: of_positions
(
    SELECT * FROM finaz.events AS e
    WHERE e.position >= %(first)s AND e.position <= %(last)s
    ORDER BY e.position {order} LIMIT %(limit)s
)

-- name: of_principal
(
    SELECT * FROM finaz.events AS e
    WHERE e.principal IS NOT NULL AND (e.principal, e.position) >= (%(principal)s, %(first)s::bigint)
      AND (e.principal, e.position) <= (%(principal)s, %(last)s::bigint)
    ORDER BY e.principal {order}, e.position {order} LIMIT %(limit)s
)

-- name: of_correlation
(
    SELECT * FROM finaz.events AS e
    WHERE e.correlation_id IS NOT NULL AND (e.correlation_id, e.position) >= (%(correlation_id)s, %(first)s::bigint)
      AND (e.correlation_id, e.position) <= (%(correlation_id)s, %(last)s::bigint)
    ORDER BY e.correlation_id {order}, e.position {order} LIMIT %(limit)s
)

-- name: of_topics
-- The first of each topic, then the first of all of them.
(
    SELECT e.*
    FROM unnest(%(topics)s::text[]) AS t(topic)
    CROSS JOIN LATERAL (
        SELECT * FROM finaz.events AS e
        WHERE (e.topic, e.position) >= (t.topic, %(first)s::bigint) AND (e.topic, e.position) <= (t.topic, %(last)s::bigint)
        ORDER BY e.topic {order}, e.position {order} LIMIT %(limit)s
    ) AS e
    ORDER BY e.position {order} LIMIT %(limit)s
)

-- name: of_streams
-- In the order of streams, which is not that of positions: only for so few that all of them are looked at.
(
    SELECT * FROM finaz.events AS e
    WHERE e.stream >= %(prefix)s AND e.stream < %(end)s
    ORDER BY e.stream, e.version LIMIT %(limit)s
)

-- name: is_between
e.position >= %(first)s AND e.position <= %(last)s

-- name: is_principal
e.principal = %(principal)s

-- name: is_correlation
e.correlation_id = %(correlation_id)s

-- name: is_topics
e.topic = ANY (%(topics)s::text[])

-- name: is_streams
e.stream >= %(prefix)s AND e.stream < %(end)s

-- The log and what is served, as one snapshot of the database sees it: for audits and exports.

-- name: begin
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY

-- name: patience
-- A client that stops in the middle holds back the cleaning up of dead rows: only for so long.
SELECT set_config('idle_in_transaction_session_timeout', %(idle)s, false), set_config('statement_timeout', %(statement)s, false),
       set_config('TimeZone', 'UTC', false), set_config('search_path', 'pg_catalog', false)

-- name: head
SELECT coalesce(max(e.position), 0), clock_timestamp(), (SELECT l.chain FROM finaz.events AS l ORDER BY l.position DESC LIMIT 1)
FROM finaz.events AS e

-- name: count_streams
-- Streams begin with version 1 (those of the library's own tests with 0).
SELECT count(*) FROM finaz.events AS e WHERE e.version <= 1

-- name: events
-- As the hash chain takes them: ids as text, instants in microseconds, all but the chain value hashed. Then, ready for decoding, the
-- ids and the instant as they are.
SELECT e.position, e.version, (extract(epoch FROM e.recorded_at) * 1000000)::bigint, e.event_id::text, e.causation_id::text, e.stream,
       e.topic, e.correlation_id, e.principal, e.state, e.chain, e.event_id, e.causation_id, e.recorded_at
FROM finaz.events AS e
WHERE e.position > %(after)s AND e.position <= %(up_to)s
ORDER BY e.position

-- name: events_of_stream
SELECT e.position, e.version, (extract(epoch FROM e.recorded_at) * 1000000)::bigint, e.event_id::text, e.causation_id::text, e.stream,
       e.topic, e.correlation_id, e.principal, e.state, e.chain, e.event_id, e.causation_id, e.recorded_at
FROM finaz.events AS e
WHERE e.stream = %(stream)s
ORDER BY e.version

-- name: chain_at
SELECT e.chain FROM finaz.events AS e WHERE e.position = %(position)s

-- name: positions
SELECT p.name, p.position FROM finaz.projections AS p WHERE p.role = 'active'

-- name: skips
-- Events that an operator has had a projection pass over.
SELECT s.name, s.position FROM finaz.projection_skips AS s

-- name: code_versions
SELECT p.name, p.code_version FROM finaz.projections AS p WHERE p.role = 'active'

-- name: events_of_category
SELECT e.position, e.version, (extract(epoch FROM e.recorded_at) * 1000000)::bigint, e.event_id::text, e.causation_id::text, e.stream,
       e.topic, e.correlation_id, e.principal, e.state, e.chain, e.event_id, e.causation_id, e.recorded_at
FROM finaz.events AS e
WHERE e.stream >= %(first)s AND e.stream < %(beyond)s
ORDER BY e.stream, e.version

-- name: snapshots
SELECT s.stream, s.version, s.topic, s.state FROM finaz.snapshots AS s ORDER BY s.stream, s.topic, s.version

-- Taking in an exported log: rows are brought into temporary tables of the session, and from there in one statement.

-- name: tables
CREATE TEMP TABLE imported_events (LIKE finaz.events INCLUDING DEFAULTS);
CREATE TEMP TABLE imported_lease_guard (LIKE finaz.lease_guard INCLUDING ALL);
CREATE TEMP TABLE imported_outbox (LIKE finaz.outbox INCLUDING ALL)

-- name: copy
COPY pg_temp.imported_events (
    position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal, state, chain) FROM STDIN

-- name: load_lease_guard
SELECT row_to_json(g)::text FROM pg_temp.imported_lease_guard AS g WHERE g.resource = ANY (%(keys)s::text[])

-- name: drop_lease_guard
DELETE FROM pg_temp.imported_lease_guard AS g WHERE g.resource = ANY (%(keys)s::text[])

-- name: save_lease_guard
INSERT INTO pg_temp.imported_lease_guard SELECT n.* FROM json_populate_recordset(NULL::finaz.lease_guard, %(rows)s::json) AS n

-- name: load_outbox
SELECT row_to_json(o)::text FROM pg_temp.imported_outbox AS o
WHERE (o.kind, o.key) IN (SELECT split_part(k, '/', 1), substr(k, strpos(k, '/') + 1) FROM unnest(%(keys)s::text[]) AS k)

-- name: drop_outbox
DELETE FROM pg_temp.imported_outbox AS o
WHERE (o.kind, o.key) IN (SELECT split_part(k, '/', 1), substr(k, strpos(k, '/') + 1) FROM unnest(%(keys)s::text[]) AS k)

-- name: save_outbox
INSERT INTO pg_temp.imported_outbox SELECT n.* FROM json_populate_recordset(NULL::finaz.outbox, %(rows)s::json) AS n

-- name: import
SELECT finaz.import_v1(%(events)s, %(chain)s)

-- name: is_empty
SELECT NOT EXISTS (SELECT FROM finaz.events)

-- name: all_outbox
SELECT row_to_json(o)::text FROM finaz.outbox AS o

-- name: depth
-- Waiting and claimed items by lane; delivered ones are counted by nobody, so this stays cheap however long the past is.
SELECT o.kind, o.lane, o.state, count(*), count(*) FILTER (WHERE o.due_at <= clock_timestamp()),
       coalesce(extract(epoch FROM clock_timestamp() - min(o.due_at) FILTER (WHERE o.due_at <= clock_timestamp())), 0)::double precision
FROM finaz.outbox AS o
WHERE o.state IN ('pending', 'claimed')
GROUP BY o.kind, o.lane, o.state
ORDER BY o.kind, o.lane, o.state

-- name: get
SELECT row_to_json(o)::text FROM finaz.outbox AS o WHERE o.kind = %(kind)s AND o.key = %(key)s

-- name: rewrite
-- Make one row what the events say, if it is still as it was seen (`seen_position` null: there was none): an append that came in
-- between has written the row itself.
INSERT INTO finaz.outbox AS o SELECT n.* FROM json_populate_record(NULL::finaz.outbox, %(right)s::json) AS n
ON CONFLICT (kind, key) DO UPDATE SET
    lane = excluded.lane, priority = excluded.priority, state = excluded.state, enqueued_position = excluded.enqueued_position,
    enqueued_at = excluded.enqueued_at, due_at = excluded.due_at, position = excluded.position, changed_at = excluded.changed_at
WHERE o.position = %(seen_position)s AND o.state = %(seen_state)s
RETURNING o.key

-- name: aside_outbox
CREATE TEMP TABLE rebuilt (LIKE finaz.outbox INCLUDING ALL);
CREATE TEMP TABLE todo (kind text COLLATE "C", key text COLLATE "C", PRIMARY KEY (kind, key));
CREATE TEMP TABLE chunk (LIKE todo INCLUDING ALL);
CREATE TEMP TABLE touched (LIKE todo INCLUDING ALL)

-- name: load_outbox
SELECT row_to_json(r)::text FROM pg_temp.rebuilt AS r WHERE (r.kind, r.key) IN (
    SELECT split_part(k, '/', 1), substr(k, strpos(k, '/') + 1) FROM unnest(%(keys)s::text[]) AS k
)

-- name: save_outbox
INSERT INTO pg_temp.rebuilt AS r SELECT n.* FROM json_populate_recordset(NULL::finaz.outbox, %(rows)s::json) AS n
ON CONFLICT (kind, key) DO UPDATE SET
    lane = excluded.lane, priority = excluded.priority, state = excluded.state, enqueued_position = excluded.enqueued_position,
    enqueued_at = excluded.enqueued_at, due_at = excluded.due_at, position = excluded.position, changed_at = excluded.changed_at

-- name: todo_all_outbox
-- Rows that are equal, in one snapshot, are right and stay so: only the others need the append lock.
INSERT INTO pg_temp.todo
SELECT coalesce(o.kind, r.kind), coalesce(o.key, r.key)
FROM finaz.outbox AS o FULL JOIN pg_temp.rebuilt AS r ON o.kind = r.kind AND o.key = r.key
WHERE ROW(o.*) IS DISTINCT FROM ROW(r.*)

-- name: take_outbox
WITH taken AS (
    DELETE FROM pg_temp.todo AS t USING (SELECT f.kind, f.key FROM pg_temp.todo AS f ORDER BY f.kind, f.key LIMIT %(limit)s) AS first
    WHERE t.kind = first.kind AND t.key = first.key
    RETURNING t.kind, t.key
)
INSERT INTO pg_temp.chunk SELECT taken.kind, taken.key FROM taken

-- name: repair_outbox
-- The stream of an item is its kind and its key. Under the append lock nobody else writes these rows.
DO $repair$
BEGIN
    -- Temporary or just emptied tables have no statistics: with these off, the planner can only go by the keys.
    PERFORM set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
            set_config('enable_seqscan', 'off', true);
    PERFORM pg_advisory_xact_lock(439855505786);
    INSERT INTO pg_temp.touched SELECT c.kind, c.key FROM pg_temp.chunk AS c
        WHERE {mark} < (
            SELECT e.position FROM finaz.events AS e WHERE e.stream = c.kind || '/' || c.key ORDER BY e.version DESC LIMIT 1
        );
    IF {whole} AND EXISTS (SELECT FROM pg_temp.touched) THEN RETURN; END IF;  -- all at one position, or nothing
    DELETE FROM pg_temp.chunk AS c USING pg_temp.touched AS t WHERE t.kind = c.kind AND t.key = c.key;
    DELETE FROM finaz.outbox AS o USING pg_temp.chunk AS c
        WHERE o.kind = c.kind AND o.key = c.key
          AND NOT EXISTS (SELECT FROM pg_temp.rebuilt AS r WHERE r.kind = c.kind AND r.key = c.key);
    INSERT INTO finaz.outbox AS o SELECT r.* FROM pg_temp.rebuilt AS r JOIN pg_temp.chunk AS c ON r.kind = c.kind AND r.key = c.key
    ON CONFLICT (kind, key) DO UPDATE SET
        lane = excluded.lane, priority = excluded.priority, state = excluded.state,
        enqueued_position = excluded.enqueued_position, enqueued_at = excluded.enqueued_at, due_at = excluded.due_at,
        position = excluded.position, changed_at = excluded.changed_at
    WHERE o IS DISTINCT FROM excluded;
    DELETE FROM pg_temp.chunk;
END
$repair$

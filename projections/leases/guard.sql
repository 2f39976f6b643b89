-- name: all_lease_guard
SELECT row_to_json(g)::text FROM finaz.lease_guard AS g

-- name: aside_lease_guard
CREATE TEMP TABLE rebuilt (LIKE finaz.lease_guard INCLUDING ALL);
CREATE TEMP TABLE todo (resource text COLLATE "C" PRIMARY KEY);
CREATE TEMP TABLE chunk (LIKE todo INCLUDING ALL);
CREATE TEMP TABLE touched (LIKE todo INCLUDING ALL)

-- name: load_lease_guard
SELECT row_to_json(r)::text FROM pg_temp.rebuilt AS r WHERE r.resource = ANY (%(keys)s::text[])

-- name: save_lease_guard
INSERT INTO pg_temp.rebuilt AS r SELECT n.* FROM json_populate_recordset(NULL::finaz.lease_guard, %(rows)s::json) AS n
ON CONFLICT (resource) DO UPDATE SET
    owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at, released = excluded.released,
    position = excluded.position

-- name: todo_all_lease_guard
-- Rows that are equal, in one snapshot, are right and stay so: only the others need the append lock.
INSERT INTO pg_temp.todo
SELECT coalesce(g.resource, r.resource)
FROM finaz.lease_guard AS g FULL JOIN pg_temp.rebuilt AS r ON g.resource = r.resource
WHERE ROW(g.*) IS DISTINCT FROM ROW(r.*)

-- name: take_lease_guard
WITH taken AS (
    DELETE FROM pg_temp.todo AS t USING (SELECT f.resource FROM pg_temp.todo AS f ORDER BY f.resource LIMIT %(limit)s) AS first
    WHERE t.resource = first.resource
    RETURNING t.resource
)
INSERT INTO pg_temp.chunk SELECT taken.resource FROM taken

-- name: repair_lease_guard
-- Under the append lock nobody else writes these rows, and nobody's fence is being checked.
DO $repair$
BEGIN
    -- Temporary or just emptied tables have no statistics: with these off, the planner can only go by the keys.
    PERFORM set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
            set_config('enable_seqscan', 'off', true);
    PERFORM pg_advisory_xact_lock(439855505786);
    INSERT INTO pg_temp.touched SELECT c.resource FROM pg_temp.chunk AS c
        WHERE {mark} < (
            SELECT e.position FROM finaz.events AS e WHERE e.stream = 'lease/' || c.resource ORDER BY e.version DESC LIMIT 1
        );
    IF {whole} AND EXISTS (SELECT FROM pg_temp.touched) THEN RETURN; END IF;  -- all at one position, or nothing
    DELETE FROM pg_temp.chunk AS c USING pg_temp.touched AS t WHERE t.resource = c.resource;
    DELETE FROM finaz.lease_guard AS g USING pg_temp.chunk AS c
        WHERE g.resource = c.resource AND NOT EXISTS (SELECT FROM pg_temp.rebuilt AS r WHERE r.resource = c.resource);
    INSERT INTO finaz.lease_guard AS g SELECT r.* FROM pg_temp.rebuilt AS r JOIN pg_temp.chunk AS c ON r.resource = c.resource
    ON CONFLICT (resource) DO UPDATE SET
        owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at, released = excluded.released,
        position = excluded.position
    WHERE g IS DISTINCT FROM excluded;
    DELETE FROM pg_temp.chunk;
END
$repair$

-- name: columns
-- The columns of a read model: name, whether it is part of the key, whether it is json, which has no equality of its own.
SELECT a.attname::text, a.attnum = ANY (k.conkey), a.atttypid = 'json'::regtype
FROM pg_attribute AS a
JOIN pg_constraint AS k ON k.conrelid = a.attrelid AND k.contype = 'p'
WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attname <> 'generation'
ORDER BY a.attnum

-- name: counts
-- `{served}` and `{built}` are tables of the same columns.
SELECT count(s.{first}), count(b.{first}), count(*) FILTER (WHERE s.{first} IS NULL), count(*) FILTER (WHERE b.{first} IS NULL),
       count(*) FILTER (WHERE s.{first} IS NOT NULL AND b.{first} IS NOT NULL AND ({differs}))
FROM {served} AS s FULL JOIN {built} AS b ON {keys}

-- name: samples
SELECT d.kind, d.key::text, d.served::text, d.rebuilt::text
FROM (
    SELECT e.*, row_number() OVER (PARTITION BY e.kind ORDER BY e.key::text) AS number
    FROM (
        SELECT CASE WHEN s.{first} IS NULL THEN 'missing' WHEN b.{first} IS NULL THEN 'extra' ELSE 'different' END AS kind,
               json_build_object({key}) AS key,
               CASE WHEN s.{first} IS NOT NULL THEN to_jsonb(s) - 'generation' END AS served,
               CASE WHEN b.{first} IS NOT NULL THEN to_jsonb(b) - 'generation' END AS rebuilt
        FROM {served} AS s FULL JOIN {built} AS b ON {keys}
        WHERE s.{first} IS NULL OR b.{first} IS NULL OR ({differs})
    ) AS e
) AS d
WHERE d.number <= {limit}
ORDER BY d.kind, d.number

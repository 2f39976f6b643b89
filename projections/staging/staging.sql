-- name: register
-- The projection, and the process manager that looks after its rows, exist from the first time that anybody stages.
INSERT INTO finaz.projections (name, generation, role)
SELECT n.name, 1, 'active' FROM (VALUES ('staging'), ('staging_reconciler')) AS n (name)
WHERE NOT EXISTS (SELECT 1 FROM finaz.projections AS p WHERE p.name = n.name AND p.role = 'active')
ON CONFLICT DO NOTHING

-- name: served
SELECT p.generation, p.position FROM finaz.projections AS p WHERE p.name = 'staging' AND p.role = 'active'

-- name: system
-- Whose staging this is: what ClickHouse holds for another system is not ours to delete.
SELECT s.system FROM finaz.staging_system AS s

-- name: synchronous
-- What is deleted in ClickHouse on the word of a commit must not come back when this server loses power.
SET synchronous_commit = on

-- name: load
-- The recorded deliveries of some runs.
SELECT a.run_id, a.output, a.artifact, a.rows, a.position FROM finaz.staging_attempts AS a
WHERE a.generation = %(generation)s AND a.state = 'recorded' AND a.run_id = ANY (%(run_ids)s::text[])

-- name: begin
-- Of which instrument it is stands in the artifact, which nobody has opened yet.
INSERT INTO finaz.staging_attempts (attempt, generation, run_id, output, instrument, artifact, rows, position, purpose)
SELECT n.attempt, %(generation)s, n.run_id, n.output, '', n.artifact, n.rows, n.position, %(purpose)s
FROM unnest(%(attempts)s::uuid[], %(run_ids)s::text[], %(outputs)s::text[], %(artifacts)s::text[], %(rows)s::bigint[],
            %(positions)s::bigint[])
    AS n (attempt, run_id, output, artifact, rows, position)

-- name: supersede
-- The attempts that these take the place of.
UPDATE finaz.staging_attempts AS a SET state = 'abandoned', changed_at = clock_timestamp()
FROM finaz.staging_attempts AS n
WHERE n.attempt = ANY (%(attempts)s::uuid[]) AND a.state = 'recorded'
  AND (a.generation, a.run_id, a.output) = (n.generation, n.run_id, n.output)

-- name: record
UPDATE finaz.staging_attempts AS a SET state = 'recorded', instrument = n.instrument, changed_at = clock_timestamp()
FROM unnest(%(attempts)s::uuid[], %(instruments)s::text[]) AS n (attempt, instrument)
WHERE a.attempt = n.attempt AND a.state = 'begun'

-- name: is_active
-- Whether readers are served from this generation; nobody swaps it until the transaction ends.
SELECT 1 FROM finaz.projections AS p
WHERE p.name = 'staging' AND p.role = 'active' AND p.generation = %(generation)s FOR SHARE

-- name: is_current
-- Whether a repair's original is still what readers see.
SELECT 1 FROM finaz.staging_attempts AS a WHERE a.attempt = %(attempt)s AND a.state = 'recorded' FOR UPDATE

-- name: abandon
UPDATE finaz.staging_attempts AS a SET state = 'abandoned', changed_at = clock_timestamp()
WHERE a.attempt = %(attempt)s AND a.state = 'recorded'

-- name: abandon_begun
-- What others began for the same purpose and did not record: whoever asks this is the only one at work on it now.
UPDATE finaz.staging_attempts AS a SET state = 'abandoned', changed_at = clock_timestamp()
WHERE a.state = 'begun' AND a.purpose = %(purpose)s

-- name: abandon_generations
-- All attempts of generations that are gone.
UPDATE finaz.staging_attempts AS a SET state = 'abandoned', changed_at = clock_timestamp()
WHERE a.state <> 'abandoned'
  AND NOT EXISTS (SELECT 1 FROM finaz.projections AS p WHERE p.name = 'staging' AND p.generation = a.generation)

-- name: abandoned
SELECT a.attempt FROM finaz.staging_attempts AS a WHERE a.state = 'abandoned' ORDER BY a.attempt LIMIT %(limit)s

-- name: forget
DELETE FROM finaz.staging_attempts AS a WHERE a.attempt = ANY (%(attempts)s::uuid[]) AND a.state = 'abandoned'

-- name: known
SELECT a.attempt FROM finaz.staging_attempts AS a WHERE a.attempt = ANY (%(attempts)s::uuid[])

-- name: visible
-- The attempts that readers see, of what they ask for, in the order of publication. A principal sees its own runs.
SELECT a.attempt, a.generation, a.run_id, a.output, a.instrument, a.artifact, a.rows, a.position FROM finaz.staging_attempts AS a
WHERE a.state = 'recorded'
  AND a.generation = (SELECT p.generation FROM finaz.projections AS p WHERE p.name = 'staging' AND p.role = 'active')
  AND (%(run_id)s::text IS NULL OR a.run_id = %(run_id)s::text)
  AND (%(output)s::text IS NULL OR a.output = %(output)s::text)
  AND (%(instrument)s::text IS NULL OR a.instrument = %(instrument)s::text)
  AND (%(principal)s::text IS NULL
       OR EXISTS (SELECT 1 FROM finaz.runs AS r WHERE r.run_id = a.run_id AND r.principal = %(principal)s::text))
ORDER BY a.position, a.output
LIMIT %(limit)s

-- name: still_visible
-- How many of these are still recorded: what was read under them was whole.
SELECT count(*) FROM finaz.staging_attempts AS a WHERE a.attempt = ANY (%(attempts)s::uuid[]) AND a.state = 'recorded'

-- name: of_generation
-- The recorded attempts of one generation, in pages.
SELECT a.attempt, a.generation, a.run_id, a.output, a.instrument, a.artifact, a.rows, a.position FROM finaz.staging_attempts AS a
WHERE a.state = 'recorded' AND a.generation = %(generation)s
  AND (a.run_id, a.output) > (%(run_id)s::text, %(output)s::text)
ORDER BY a.run_id, a.output
LIMIT %(limit)s

-- name: tally
-- How many outputs and rows are staged, and how many attempts wait to be recorded or deleted.
SELECT count(*) FILTER (WHERE a.state = 'recorded'), coalesce(sum(a.rows) FILTER (WHERE a.state = 'recorded'), 0)::bigint,
       count(*) FILTER (WHERE a.state = 'begun'), count(*) FILTER (WHERE a.state = 'abandoned')
FROM finaz.staging_attempts AS a
WHERE a.state <> 'recorded'
   OR a.generation = (SELECT p.generation FROM finaz.projections AS p WHERE p.name = 'staging' AND p.role = 'active')

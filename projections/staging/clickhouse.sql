-- name: create
-- `attempt` comes first in the order: what readers, repairs and deletes ask for is one attempt, or a few. A part is flushed to disk
-- before an insert returns, since PostgreSQL records the attempt right after.
CREATE TABLE IF NOT EXISTS feature_values (
    run_id LowCardinality(String),
    output LowCardinality(String),
    instrument LowCardinality(String),
    event_time DateTime64(6, 'UTC'),
    event_id String,
    value Nullable(Float64),
    attempt UUID,
    generation UInt32
) ENGINE = MergeTree
PARTITION BY generation
ORDER BY (attempt, event_time, event_id)
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1

-- name: create_owner
CREATE TABLE IF NOT EXISTS feature_values_owner (system UUID) ENGINE = MergeTree ORDER BY system SETTINGS fsync_after_insert = 1

-- name: owners
SELECT DISTINCT system FROM feature_values_owner

-- name: own
INSERT INTO feature_values_owner SELECT {system:UUID}

-- name: delete
DELETE FROM feature_values WHERE attempt IN {attempts:Array(UUID)}

-- name: drop_generation
ALTER TABLE feature_values DROP PARTITION ID {generation:String}

-- name: attempts
-- Every attempt that has rows, after one of them, in an order of its own.
SELECT DISTINCT attempt FROM feature_values WHERE attempt > {after:UUID} ORDER BY attempt LIMIT {limit:UInt64}

-- name: counts
SELECT attempt, count() AS rows FROM feature_values WHERE attempt IN {attempts:Array(UUID)} GROUP BY attempt

-- name: foreign
-- Rows of an attempt that say another run, output, instrument or generation than the attempt is of.
SELECT count() FROM feature_values
WHERE attempt = {attempt:UUID}
  AND (run_id != {run_id:String} OR output != {output:String} OR instrument != {instrument:String} OR generation != {generation:UInt32})

-- name: labels
-- How many rows each attempt has, and of what they say they are: two answers are enough to see that there is more than one.
SELECT attempt, count() AS rows, groupUniqArray(2)((toString(run_id), toString(output), toString(instrument), generation)) AS labels
FROM feature_values WHERE attempt IN {attempts:Array(UUID)} GROUP BY attempt

-- name: rows_of
-- All rows of some attempts, in the order in which the attempts are given.
SELECT event_time, event_id, value FROM feature_values
WHERE attempt IN {attempts:Array(UUID)}
ORDER BY indexOf({attempts:Array(UUID)}, attempt), event_time, event_id
LIMIT {limit:UInt64}

-- name: digests
-- One number for the rows of each attempt, which any change to any of them changes.
SELECT attempt, count() AS rows,
       sum(reinterpretAsUInt128(sipHash128(event_time, event_id, ifNull(value, nan), isNull(value), run_id, output, instrument))) AS digest
FROM feature_values WHERE attempt IN {attempts:Array(UUID)}
GROUP BY attempt

-- name: page_of_one
-- Rows of one attempt in clock order, after a place; the instant alone is compared too, because the index knows it.
SELECT event_time, event_id, run_id, output, instrument, value FROM feature_values
WHERE attempt = {attempt:UUID} AND generation = {generation:UInt32}
  AND event_time >= fromUnixTimestamp64Micro({first:Int64}, 'UTC') AND event_time < fromUnixTimestamp64Micro({before:Int64}, 'UTC')
  AND (event_time > fromUnixTimestamp64Micro({time:Int64}, 'UTC')
       OR (event_time = fromUnixTimestamp64Micro({time:Int64}, 'UTC') AND event_id > {event_id:String}))
ORDER BY event_time, event_id
LIMIT {limit:UInt64}

-- name: page_of_many
SELECT event_time, event_id, run_id, output, instrument, value FROM feature_values
WHERE attempt IN {attempts:Array(UUID)} AND generation = {generation:UInt32}
  AND event_time >= fromUnixTimestamp64Micro({first:Int64}, 'UTC') AND event_time < fromUnixTimestamp64Micro({before:Int64}, 'UTC')
  AND (event_time > fromUnixTimestamp64Micro({time:Int64}, 'UTC')
       OR (event_time = fromUnixTimestamp64Micro({time:Int64}, 'UTC')
           AND (event_id, run_id, output) > ({event_id:String}, {run_id:String}, {output:String})))
ORDER BY event_time, event_id, run_id, output
LIMIT {limit:UInt64}

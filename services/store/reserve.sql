-- Sharing the head of the outbox: a reservation is a hint with a short life, so that workers do not fight over the same items.

-- name: reserve
-- Keys of up to %(limit)s items of a kind and some lanes that are pending, due, and not reserved, in queue order. A reservation is
-- of an item as of its last change; a changed item is free again. One statement, and it waits for nobody: items that another is
-- reserving, or an append is changing, are passed over. Its commit does not wait for the disk: a hint lost in a crash costs nothing.
WITH hint AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS synchronous_commit -- for this transaction
), candidates AS (
    SELECT c.* FROM hint
    CROSS JOIN unnest(%(lanes)s::text[]) AS l(lane)
    CROSS JOIN LATERAL (
        SELECT o.kind, o.key, o.priority, o.enqueued_position, o.position
        FROM finaz.outbox AS o
        WHERE o.kind = %(kind)s AND o.lane = l.lane AND o.state = 'pending' AND o.due_at <= clock_timestamp()
          AND NOT EXISTS (
              SELECT FROM finaz.reservations AS r
              WHERE r.kind = o.kind AND r.key = o.key AND r.position = o.position AND r.reserved_until > clock_timestamp()
          )
        ORDER BY o.priority DESC, o.enqueued_position
        LIMIT %(limit)s
        FOR NO KEY UPDATE OF o SKIP LOCKED
    ) AS c
    WHERE hint.synchronous_commit = 'off'
    ORDER BY c.priority DESC, c.enqueued_position
    LIMIT %(limit)s
), reserved AS (
    INSERT INTO finaz.reservations AS r (kind, key, owner, position, reserved_until)
    SELECT c.kind, c.key, %(owner)s, c.position, clock_timestamp() + %(seconds)s * interval '1 second'
    FROM candidates AS c ORDER BY c.kind, c.key
    ON CONFLICT (kind, key) DO UPDATE
        SET owner = excluded.owner, position = excluded.position, reserved_until = excluded.reserved_until
        WHERE r.position < excluded.position OR r.reserved_until <= clock_timestamp()
    RETURNING kind, key
)
SELECT c.key
FROM candidates AS c JOIN reserved AS r ON r.kind = c.kind AND r.key = c.key
ORDER BY c.priority DESC, c.enqueued_position

-- name: release
-- Give reservations back before they end; those that another took over meanwhile stay.
DELETE FROM finaz.reservations WHERE kind = %(kind)s AND owner = %(owner)s AND key = ANY (%(keys)s::text[])

-- name: sweep
-- Remove reservations that ended a while ago, a bounded number, passing over rows that are being taken right now.
DELETE FROM finaz.reservations AS r
USING (
    SELECT s.kind, s.key FROM finaz.reservations AS s
    WHERE s.reserved_until < clock_timestamp() - interval '1 minute'
    ORDER BY s.reserved_until LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) AS ended
WHERE r.kind = ended.kind AND r.key = ended.key

-- Runs of a lane that are worked on for as long as they live, by whoever holds their lease: waiting ones, and those nobody holds.

-- name: unowned
-- Keys of up to %(limit)s items of a kind and lane that are waiting and due, or claimed while nobody holds a live lease on them, in
-- queue order. A look, no claim: the append decides, by the same clock.
SELECT o.key
FROM finaz.outbox AS o
LEFT JOIN finaz.lease_guard AS g ON g.resource = o.key
WHERE o.kind = %(kind)s AND o.lane = %(lane)s
  AND ((o.state = 'pending' AND o.due_at <= clock_timestamp())
    OR (o.state = 'claimed' AND (g.resource IS NULL OR g.released OR g.expires_at <= clock_timestamp())))
ORDER BY o.priority DESC, o.enqueued_position
LIMIT %(limit)s

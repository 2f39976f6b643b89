-- name: put
INSERT INTO finaz.contacts (contact_id, purchase_id, address) VALUES (%(contact_id)s, %(purchase_id)s, %(address)s)
ON CONFLICT (contact_id) DO NOTHING

-- name: address
SELECT c.address FROM finaz.contacts AS c WHERE c.contact_id = %(contact_id)s

-- name: remove
DELETE FROM finaz.contacts AS c WHERE c.contact_id = %(contact_id)s

-- name: erase
-- Whoever is behind this address is forgotten in every purchase.
UPDATE finaz.contacts AS c SET address = NULL, erased_at = clock_timestamp()
WHERE lower(c.address) = lower(%(address)s)
RETURNING c.purchase_id

-- name: sweep
-- Looks at some addresses, the oldest that nobody has looked at, some time after they were written. Those that a purchase refers to
-- are kept; others were left by a crash (though the purchase may have come about, by another try with an address written anew).
WITH unseen AS (
    SELECT c.contact_id, EXISTS (
        SELECT FROM finaz.events AS e
        WHERE e.stream = 'purchase/' || c.purchase_id AND e.version = 1 AND e.state::json ->> 'contact_id' = c.contact_id
    ) AS referred
    FROM finaz.contacts AS c
    WHERE NOT c.kept AND c.made_at < clock_timestamp() - make_interval(secs => %(age_seconds)s)
    ORDER BY c.made_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
), referred AS (
    UPDATE finaz.contacts AS c SET kept = true FROM unseen AS u WHERE c.contact_id = u.contact_id AND u.referred
)
DELETE FROM finaz.contacts AS c USING unseen AS u WHERE c.contact_id = u.contact_id AND NOT u.referred

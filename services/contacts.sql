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
-- Addresses that no purchase refers to, some time after they were written: a crash left them. The purchase may have come about all
-- the same, by another try with an address written anew.
DELETE FROM finaz.contacts AS c
WHERE c.made_at < clock_timestamp() - make_interval(secs => %(age_seconds)s)
  AND NOT EXISTS (
      SELECT FROM finaz.events AS e
      WHERE e.stream = 'purchase/' || c.purchase_id AND e.version = 1 AND e.state::json ->> 'contact_id' = c.contact_id
  )

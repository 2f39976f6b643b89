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
-- Addresses of purchases that never came about, some time after they were written: a crash left them.
DELETE FROM finaz.contacts AS c
WHERE c.made_at < clock_timestamp() - make_interval(secs => %(age_seconds)s)
  AND NOT EXISTS (SELECT FROM finaz.events AS e WHERE e.stream = 'purchase/' || c.purchase_id)

-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.purchase_id = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, purchase_id) DO UPDATE SET
    state = excluded.state, principal = excluded.principal, show_id = excluded.show_id, seats = excluded.seats,
    amount_minor = excluded.amount_minor, currency = excluded.currency, alerts = excluded.alerts,
    state_since = excluded.state_since, started_at = excluded.started_at, first_position = excluded.first_position,
    position = excluded.position

-- name: all
SELECT row_to_json(r)::text FROM finaz.purchases AS r


-- name: list
-- Newest first, before a position; of one principal and in one state, if they are given.
SELECT row_to_json(r)::text FROM finaz.purchases AS r
WHERE r.first_position < %(before)s
  AND (%(principal)s::text IS NULL OR r.principal = %(principal)s::text)
  AND (%(state)s::text IS NULL OR r.state = %(state)s::text)
ORDER BY r.first_position DESC
LIMIT %(limit)s

-- name: stuck
-- Purchases that have not come to an end, or whose alerts nobody has settled, and that have been in their state for so long by the
-- business clock, the longest first. The index of unsettled ones has the same condition.
SELECT row_to_json(r)::text, extract(epoch FROM (SELECT finaz.business_now()) - r.state_since)::double precision
FROM finaz.purchases AS r
WHERE (r.state NOT IN ('CONFIRMED', 'COMPENSATED') OR cardinality(r.alerts) > 0)
  AND r.state_since <= (SELECT finaz.business_now()) - make_interval(secs => %(age_seconds)s)
ORDER BY r.state_since, r.purchase_id
LIMIT %(limit)s

-- name: alerted
-- Those with alerts that nobody has settled, the newest first, before a position. The index of alerts has the same condition.
SELECT row_to_json(r)::text FROM finaz.purchases AS r
WHERE cardinality(r.alerts) > 0 AND r.first_position < %(before)s
ORDER BY r.first_position DESC
LIMIT %(limit)s

-- name: counts
-- How many have not come to an end, by state, and the age of the oldest by the business clock.
SELECT r.state, count(*), max(extract(epoch FROM (SELECT finaz.business_now()) - r.state_since))::double precision,
       count(*) FILTER (WHERE r.state_since <= (SELECT finaz.business_now()) - make_interval(secs => %(overdue_seconds)s))
FROM finaz.purchases AS r
WHERE r.state NOT IN ('CONFIRMED', 'COMPENSATED')
GROUP BY r.state
ORDER BY r.state

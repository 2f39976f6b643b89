-- name: now
SELECT finaz.business_now()

-- name: advance
-- Forward only; for tests and demos.
UPDATE finaz.business_clock SET ahead = ahead + make_interval(secs => greatest(0, %(seconds)s)) RETURNING finaz.business_now()

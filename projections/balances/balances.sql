-- name: load
-- `{copy}` is the table of one generation.
SELECT row_to_json(r)::text FROM {copy} AS r
WHERE r.generation = %(generation)s AND r.currency = ANY (%(keys)s::text[])

-- name: save
INSERT INTO {copy} AS r
SELECT n.* FROM json_populate_recordset(
    json_populate_record(NULL::{copy}, json_build_object('generation', %(generation)s::integer)),
    %(rows)s::json
) AS n
ON CONFLICT (generation, currency) DO UPDATE SET
    accounts = excluded.accounts, charges = excluded.charges, refunds = excluded.refunds, position = excluded.position

-- name: all
SELECT row_to_json(r)::text FROM finaz.balances AS r


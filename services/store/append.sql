-- The one append function: takes many appends, decides each as if they were executed one after another, stores what passed, and
-- returns one verdict each. Nothing else inserts events.
--
-- What must stay true:
--   * One statement, one round trip: the advisory lock lives no longer than the statement, so a client that stops delays nobody.
--   * Positions are gapless and become visible in their order: they are taken under the lock, which is held until the commit is
--     visible. READ COMMITTED is required, so that what follows the lock sees what was committed before it.
--   * All verdicts are judged by one instant, clock_timestamp() after the lock; it is also recorded_at.
--   * Appends of one call touch no stream, tracking name or (changed) lease in common; a call that does is a bug and refused as
--     a whole. So judging all against the state before the call is the same as one after another.
--   * Set-based: no subtransaction and no statement per append.
--   * Lock order: the append lock, then rows; nothing else takes these rows in another order.
--
-- Raises only on bugs. A crash half-way leaves nothing: it is one transaction.
--
-- Verdicts: 0 stored, 1 stored before (all its event ids are), 2 version conflict, 3 stale fence, 4 lease held, 5 position conflict,
-- 6 a part of its event ids is stored (a bug of the caller). Judged in the order 1, 6, 3 and 4, 2, 5.

CREATE OR REPLACE FUNCTION finaz.chain_step_v1(chain bytea, previous bytea, digest bytea) RETURNS bytea
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    AS $$
BEGIN
    RETURN sha256(coalesce(chain, previous) || digest);
END
$$;

-- Running hash chain over rows in order, started from `previous`.
CREATE OR REPLACE AGGREGATE finaz.chain_v1(previous bytea, digest bytea) (
    SFUNC = finaz.chain_step_v1,
    STYPE = bytea
);

CREATE OR REPLACE FUNCTION finaz.append_v1(
    -- one element per append
    guard_kinds smallint[],         -- 0 none, 1 fence, 2 vacant
    guard_resources text[],
    guard_owners text[],
    guard_tokens bigint[],
    tracking_names text[],
    tracking_positions bigint[],
    append_ids uuid[],              -- names an append without events, else null
    -- one element per event, in order
    event_appends integer[],        -- 1 is the first append
    streams text[],
    versions bigint[],
    event_ids uuid[],
    topics text[],
    states text[],
    causation_ids uuid[],
    correlation_ids text[],
    principals text[],
    -- one element per changed lease, one per resource
    lease_appends integer[],
    lease_events integer[],         -- 1 is the first event of the call
    lease_resources text[],
    lease_owners text[],
    lease_tokens bigint[],
    lease_ttl_micros bigint[],      -- null keeps the expiry
    lease_releases boolean[],
    -- one element per outbox change, in order
    outbox_events integer[],
    outbox_kinds text[],
    outbox_keys text[],
    outbox_states text[],
    outbox_delay_micros bigint[],
    outbox_lanes text[],            -- given where the change creates the row
    outbox_priorities integer[],
    OUT head bigint,                -- the last position before the call; what was stored follows it in order
    OUT recorded_at timestamptz,
    OUT verdicts smallint[],
    OUT repeated_positions bigint[],
    OUT repeated_at timestamptz[]
)
    LANGUAGE plpgsql
    SET search_path = finaz, pg_catalog, pg_temp
    -- Plans are made once, maybe over empty tables: every look into a table must be a probe of an index, whatever it costs then.
    SET enable_seqscan = off
    SET enable_hashjoin = off
    SET enable_mergejoin = off
    SET plan_cache_mode = force_generic_plan
    SET jit = off
    AS $$
#variable_conflict use_variable
DECLARE
    appends constant integer := cardinality(guard_kinds);
    clock timestamptz;
    clock_micros text;
    previous bytea;
    all_pass boolean;
    positions bigint[];             -- by event, null where its append is refused; not made where all pass
    stored integer;
    changed integer;
    culprit text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'finaz.append needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;

    -- What must be filled in: compared with, a null would pass for something that holds.
    IF EXISTS (
        SELECT FROM unnest(guard_kinds, guard_resources, guard_owners, guard_tokens) AS g(kind, resource, owner, token)
        WHERE g.kind IS NULL OR g.kind NOT IN (0, 1, 2) OR (g.kind <> 0 AND (g.resource IS NULL OR g.token IS NULL))
           OR (g.kind = 1 AND g.owner IS NULL)
    ) THEN
        RAISE EXCEPTION 'a guard is not whole: its kind, resource, token or owner is missing';
    END IF;
    IF EXISTS (
        SELECT FROM unnest(event_appends) AS e(append) WHERE e.append IS NULL OR e.append NOT BETWEEN 1 AND appends
    ) THEN
        RAISE EXCEPTION 'an event belongs to none of the % appends', appends;
    END IF;

    PERFORM pg_advisory_xact_lock(439855505786);  -- 'finaz' in ASCII
    clock := clock_timestamp();
    recorded_at := clock;

    SELECT e.position, e.chain INTO head, previous FROM finaz.events AS e ORDER BY e.position DESC LIMIT 1;
    IF head IS NULL THEN
        head := 0;
        previous := decode(repeat('00', 32), 'hex');
    END IF;

    -- Appends of one call must not depend on each other, and events of one stream stand in the order of their versions, without
    -- gaps. In the same look: does each stream go on where it ends, and is no event id known? Then versions refuse nobody.
    SELECT min(e.stream) FILTER (WHERE e.append <> e.append_before OR e.version <> e.version_before + 1),
           coalesce(bool_and(
               (SELECT k.position FROM finaz.events AS k WHERE k.event_id = e.event_id LIMIT 1) IS NULL
               AND (e.version_before IS NOT NULL OR e.version = coalesce(
                   (SELECT h.version + 1 FROM finaz.events AS h WHERE h.stream = e.stream ORDER BY h.version DESC LIMIT 1),
                   least(e.version, 1)))
           ), true)
    INTO culprit, all_pass
    FROM (
        SELECT e.*, lag(e.append) OVER w AS append_before, lag(e.version) OVER w AS version_before
        FROM unnest(event_appends, streams, versions, event_ids) WITH ORDINALITY AS e(append, stream, version, event_id, n)
        WINDOW w AS (PARTITION BY e.stream ORDER BY e.n)
    ) AS e;
    IF culprit IS NOT NULL THEN
        RAISE EXCEPTION 'the events of stream % belong to several appends of one call, or its versions are not contiguous', culprit;
    END IF;
    IF tracking_names IS NOT NULL THEN
        SELECT t.name INTO culprit FROM unnest(tracking_names) AS t(name) WHERE t.name IS NOT NULL
            GROUP BY t.name HAVING count(*) > 1 LIMIT 1;
        IF culprit IS NOT NULL THEN
            RAISE EXCEPTION 'two appends of one call move the tracking position %', culprit;
        END IF;
    END IF;
    IF cardinality(lease_appends) > 0 THEN
        SELECT r.resource INTO culprit
            FROM (
                SELECT c.resource, c.append, true AS changes FROM unnest(lease_resources, lease_appends) AS c(resource, append)
                UNION ALL
                SELECT g.resource, g.append, false FROM unnest(guard_resources) WITH ORDINALITY AS g(resource, append)
            ) AS r
            GROUP BY r.resource HAVING bool_or(r.changes) AND min(r.append) <> max(r.append) LIMIT 1;
        IF culprit IS NOT NULL THEN
            RAISE EXCEPTION 'two appends of one call depend on the lease of %', culprit;
        END IF;
    END IF;

    -- Do all guards hold, too? Mostly everything passes, and then nobody needs a verdict of his own.
    IF all_pass AND guard_resources IS NOT NULL THEN
        SELECT bool_and(
                CASE g.kind
                    WHEN 0 THEN true
                    WHEN 1 THEN l.token IS NOT NULL AND l.token = g.token AND l.owner = g.owner AND NOT l.released
                                AND l.expires_at > clock
                    ELSE coalesce(l.token, 0) = g.token AND (l.token IS NULL OR l.released OR l.expires_at <= clock)
                END)
        INTO all_pass
        FROM unnest(guard_kinds, guard_resources, guard_owners, guard_tokens) AS g(kind, resource, owner, token)
        LEFT JOIN LATERAL (SELECT * FROM finaz.lease_guard AS l WHERE l.resource = g.resource LIMIT 1) AS l ON true;
    END IF;
    IF all_pass AND tracking_names IS NOT NULL THEN
        SELECT NOT EXISTS (
            SELECT FROM unnest(tracking_names, tracking_positions) AS g(name, position)
            JOIN LATERAL (SELECT t.position FROM finaz.tracking AS t WHERE t.name = g.name LIMIT 1) AS t ON true
            WHERE t.position >= g.position
        ) INTO all_pass;
    END IF;

    IF all_pass THEN
        verdicts := array_fill(0::smallint, ARRAY[appends]);
    ELSE
        -- One verdict each.
        SELECT array_agg(
                CASE
                    WHEN a.moved_by = a.append_id OR e.known = e.given THEN 1
                    WHEN e.known > 0 THEN 6
                    WHEN a.kind = 1 AND (
                        a.lease_token IS NULL OR a.lease_token <> a.token OR a.lease_owner <> a.owner OR a.lease_released
                        OR a.lease_expires_at <= clock
                    ) THEN 3
                    WHEN a.kind = 2 AND a.lease_token IS NOT NULL AND NOT a.lease_released AND a.lease_expires_at > clock THEN 4
                    WHEN a.kind = 2 AND coalesce(a.lease_token, 0) <> a.token THEN 3
                    WHEN e.conflicts > 0 THEN 2
                    WHEN a.tracked >= a.tracking THEN 5
                    ELSE 0
                END::smallint
                ORDER BY a.n
            ),
            CASE WHEN bool_or(e.known > 0) THEN array_agg(e.last_position ORDER BY a.n) END,
            CASE WHEN bool_or(e.known > 0) THEN array_agg(e.stored_at ORDER BY a.n) END
        INTO verdicts, repeated_positions, repeated_at
        FROM (
            SELECT g.*, l.owner AS lease_owner, l.token AS lease_token, l.expires_at AS lease_expires_at,
                   l.released AS lease_released, t.position AS tracked, t.moved_by
            FROM unnest(guard_kinds, guard_resources, guard_owners, guard_tokens, tracking_names, tracking_positions, append_ids)
                     WITH ORDINALITY AS g(kind, resource, owner, token, name, tracking, append_id, n)
            LEFT JOIN LATERAL (SELECT * FROM finaz.lease_guard AS l WHERE l.resource = g.resource LIMIT 1) AS l ON true
            LEFT JOIN LATERAL (SELECT * FROM finaz.tracking AS t WHERE t.name = g.name LIMIT 1) AS t ON true
        ) AS a
        LEFT JOIN (
            SELECT s.append, sum(s.given) AS given, sum(s.known) AS known, max(s.last_position) AS last_position,
                   max(s.stored_at) AS stored_at,
                   count(*) FILTER (WHERE s.first_version <> coalesce(h.version + 1, least(s.first_version, 1))) AS conflicts
            FROM (
                SELECT e.stream, min(e.append) AS append, count(*) AS given, count(k.position) AS known,
                       min(e.version) AS first_version, max(k.position) AS last_position, max(k.recorded_at) AS stored_at
                FROM unnest(event_appends, streams, versions, event_ids) AS e(append, stream, version, event_id)
                LEFT JOIN LATERAL (
                    SELECT k.position, k.recorded_at FROM finaz.events AS k WHERE k.event_id = e.event_id LIMIT 1
                ) AS k ON true
                GROUP BY e.stream
            ) AS s
            LEFT JOIN LATERAL (
                SELECT h.version FROM finaz.events AS h WHERE h.stream = s.stream ORDER BY h.version DESC LIMIT 1
            ) AS h ON true
            GROUP BY s.append
        ) AS e ON e.append = a.n;
        IF 0 <> ALL (verdicts) THEN
            RETURN;
        END IF;

        -- The places of what passed.
        SELECT array_agg(p.place ORDER BY p.n) INTO positions
            FROM (
                SELECT e.n, CASE WHEN verdicts[e.append] = 0
                                 THEN head + count(*) FILTER (WHERE verdicts[e.append] = 0) OVER (ORDER BY e.n) END AS place
                FROM unnest(event_appends) WITH ORDINALITY AS e(append, n)
            ) AS p;
    END IF;

    clock_micros := (extract(epoch FROM clock) * 1000000)::bigint::text;
    INSERT INTO finaz.events (
            position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal, state, chain)
        SELECT e.place, e.version, clock, e.event_id, e.causation_id, e.stream, e.topic, e.correlation_id, e.principal, e.state,
               finaz.chain_v1(previous, sha256(convert_to(concat(
                   e.place, '|', e.version, '|', clock_micros, '|', e.event_id, '|', e.causation_id, '|',
                   octet_length(e.stream), ':', e.stream, '|', octet_length(e.topic), ':', e.topic, '|',
                   octet_length(e.correlation_id), ':', e.correlation_id, '|', octet_length(e.principal), ':', e.principal, '|',
                   octet_length(e.state), ':', e.state
               ), 'UTF8'))) OVER (ORDER BY e.place ROWS UNBOUNDED PRECEDING)
        FROM (
            SELECT e.*, CASE WHEN all_pass THEN head + e.n ELSE e.position END AS place
            FROM unnest(positions, streams, versions, event_ids, topics, states, causation_ids, correlation_ids, principals)
                     WITH ORDINALITY
                     AS e(position, stream, version, event_id, topic, state, causation_id, correlation_id, principal, n)
        ) AS e
        WHERE e.place IS NOT NULL;
    GET DIAGNOSTICS stored = ROW_COUNT;

    IF cardinality(lease_appends) > 0 THEN
        INSERT INTO finaz.lease_guard AS g (resource, owner, token, expires_at, released, position)
            SELECT c.resource, c.owner, c.token,
                   coalesce(clock + c.ttl_micros * interval '1 microsecond', l.expires_at, clock), c.released,
                   CASE WHEN all_pass THEN head + c.event ELSE positions[c.event] END
            FROM unnest(lease_appends, lease_events, lease_resources, lease_owners, lease_tokens, lease_ttl_micros, lease_releases)
                     AS c(append, event, resource, owner, token, ttl_micros, released)
            LEFT JOIN LATERAL (
                SELECT l.expires_at FROM finaz.lease_guard AS l WHERE l.resource = c.resource LIMIT 1
            ) AS l ON true
            WHERE verdicts[c.append] = 0
            ORDER BY c.resource
        ON CONFLICT (resource) DO UPDATE SET
            owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at, released = excluded.released,
            position = excluded.position
        WHERE excluded.token >= g.token;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> (SELECT count(*) FROM unnest(lease_appends) AS c(append) WHERE verdicts[c.append] = 0) THEN
            RAISE EXCEPTION 'a fence token would go back';
        END IF;
    END IF;

    IF cardinality(outbox_events) > 0 THEN
        -- Rows that an event creates, then rows that a later event changes; the last event of each key wins.
        INSERT INTO finaz.outbox AS o (
                kind, key, lane, priority, state, enqueued_position, enqueued_at, due_at, position, changed_at)
            SELECT DISTINCT ON (c.kind, c.key) c.kind, c.key, c.lane, c.priority, c.state, c.place, clock,
                   clock + c.delay_micros * interval '1 microsecond', c.place, clock
            FROM (
                SELECT c.*, CASE WHEN all_pass THEN head + c.event ELSE positions[c.event] END AS place
                FROM unnest(outbox_events, outbox_kinds, outbox_keys, outbox_states, outbox_delay_micros, outbox_lanes,
                            outbox_priorities) AS c(event, kind, key, state, delay_micros, lane, priority)
            ) AS c
            WHERE c.lane IS NOT NULL AND c.place IS NOT NULL
            ORDER BY c.kind, c.key, c.event DESC
        ON CONFLICT (kind, key) DO UPDATE SET
            lane = excluded.lane, priority = excluded.priority, state = excluded.state,
            enqueued_position = excluded.enqueued_position, enqueued_at = excluded.enqueued_at, due_at = excluded.due_at,
            position = excluded.position, changed_at = excluded.changed_at;
        UPDATE finaz.outbox AS o
            SET state = l.state, due_at = clock + l.delay_micros * interval '1 microsecond', position = l.place, changed_at = clock
            FROM (
                SELECT DISTINCT ON (c.kind, c.key) c.kind, c.key, c.state, c.delay_micros, c.place
                FROM (
                    SELECT c.*, CASE WHEN all_pass THEN head + c.event ELSE positions[c.event] END AS place
                    FROM unnest(outbox_events, outbox_kinds, outbox_keys, outbox_states, outbox_delay_micros, outbox_lanes)
                             AS c(event, kind, key, state, delay_micros, lane)
                ) AS c
                WHERE c.lane IS NULL AND c.place IS NOT NULL
                ORDER BY c.kind, c.key, c.event DESC
            ) AS l
            WHERE o.kind = l.kind AND o.key = l.key AND o.position < l.place;
        IF 'pending' = ANY (outbox_states) THEN
            PERFORM pg_notify('finaz_outbox', (head + stored)::text);
        END IF;
    END IF;

    IF tracking_names IS NOT NULL THEN
        INSERT INTO finaz.tracking AS t (name, position, moved_at, moved_by)
            SELECT g.name, g.position, clock, g.append_id
            FROM unnest(tracking_names, tracking_positions, append_ids) WITH ORDINALITY AS g(name, position, append_id, n)
            WHERE g.name IS NOT NULL AND verdicts[g.n] = 0
            ORDER BY g.name
        ON CONFLICT (name) DO UPDATE SET position = excluded.position, moved_at = excluded.moved_at, moved_by = excluded.moved_by;
    END IF;

    IF stored > 0 THEN
        PERFORM pg_notify('finaz_events', (head + stored)::text);
    END IF;
END
$$;

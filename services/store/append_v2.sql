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
--   * Set-based: no subtransaction and no statement per append. A statement costs as much as an event or two, and a call is mostly
--     small: so what can be judged by an expression is not asked in a statement, and what has nothing to do is not executed.
--   * Lock order: the append lock, then rows; nothing else takes these rows in another order.
--
-- The hash chain's aggregate, finaz.chain_v1, is that of `append.sql`, which released databases have; so is the form of the call.
--
-- Raises only on bugs. A crash half-way leaves nothing: it is one transaction.
--
-- Verdicts: 0 stored, 1 stored before (all its event ids are), 2 version conflict, 3 stale fence, 4 lease held, 5 position conflict,
-- 6 a part of its event ids is stored (a bug of the caller). Judged in the order 1, 6, 3 and 4, 2, 5.

CREATE OR REPLACE FUNCTION finaz.append_v2(
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
    events constant integer := cardinality(event_appends);
    leases constant integer := cardinality(lease_appends);
    items constant integer := cardinality(outbox_events);
    clock timestamptz;
    clock_micros text;
    previous bytea;
    all_pass boolean;
    whole boolean;
    positions bigint[];             -- by event, null where its append is refused; not made where all pass
    stored integer;
    changed integer;
    culprit text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'finaz.append needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;

    -- What must be filled in: compared with, a null would pass for something that holds. What guards name is looked at with them.
    IF array_position(guard_kinds, NULL) IS NOT NULL OR 0 > ANY (guard_kinds) OR 2 < ANY (guard_kinds) THEN
        RAISE EXCEPTION 'a guard is not whole: its kind, resource, token or owner is missing';
    END IF;
    IF (appends = ALL (ARRAY[coalesce(cardinality(guard_resources), appends), coalesce(cardinality(guard_owners), appends),
                             coalesce(cardinality(guard_tokens), appends), coalesce(cardinality(tracking_names), appends),
                             coalesce(cardinality(tracking_positions), appends), coalesce(cardinality(append_ids), appends)])
        AND events = ALL (ARRAY[cardinality(streams), cardinality(versions), cardinality(event_ids), cardinality(topics),
                                cardinality(states), coalesce(cardinality(causation_ids), events),
                                coalesce(cardinality(correlation_ids), events), coalesce(cardinality(principals), events)])
        AND leases = ALL (ARRAY[cardinality(lease_events), cardinality(lease_resources), cardinality(lease_owners),
                                cardinality(lease_tokens), coalesce(cardinality(lease_ttl_micros), leases),
                                cardinality(lease_releases)])
        AND items = ALL (ARRAY[cardinality(outbox_kinds), cardinality(outbox_keys), cardinality(outbox_states),
                               cardinality(outbox_delay_micros), coalesce(cardinality(outbox_lanes), items),
                               coalesce(cardinality(outbox_priorities), items)])) IS NOT TRUE THEN
        RAISE EXCEPTION 'lists that belong together differ in length';
    END IF;
    IF array_position(event_appends, NULL) IS NOT NULL OR 1 > ANY (event_appends) OR appends < ANY (event_appends) THEN
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
           coalesce(bool_and(e.version_before IS NOT NULL OR e.version = coalesce(
               (SELECT h.version + 1 FROM finaz.events AS h WHERE h.stream = e.stream ORDER BY h.version DESC LIMIT 1),
               least(e.version, 1)
           )), true) AND NOT EXISTS (SELECT FROM finaz.events AS k WHERE k.event_id = ANY (event_ids))
    INTO culprit, all_pass
    FROM (
        SELECT e.*, lag(e.append) OVER w AS append_before, lag(e.version) OVER w AS version_before
        FROM (
            SELECT n, event_appends[n] AS append, streams[n] AS stream, versions[n] AS version
            FROM generate_series(1, events) AS n
        ) AS e
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
    IF leases > 0 THEN
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
    IF 0 <> ANY (guard_kinds) THEN
        SELECT bool_and(g.kind = 0 OR (g.resource IS NOT NULL AND g.token IS NOT NULL AND (g.kind = 2 OR g.owner IS NOT NULL))),
               all_pass AND bool_and(
                CASE g.kind
                    WHEN 0 THEN true
                    WHEN 1 THEN l.token IS NOT NULL AND l.token = g.token AND l.owner = g.owner AND NOT l.released
                                AND l.expires_at > clock
                    ELSE coalesce(l.token, 0) = g.token AND (l.token IS NULL OR l.released OR l.expires_at <= clock)
                END)
        INTO whole, all_pass
        FROM (
            SELECT guard_kinds[n] AS kind, guard_resources[n] AS resource, guard_owners[n] AS owner, guard_tokens[n] AS token
            FROM generate_series(1, appends) AS n
        ) AS g
        LEFT JOIN LATERAL (SELECT * FROM finaz.lease_guard AS l WHERE l.resource = g.resource LIMIT 1) AS l ON true;
        IF NOT whole THEN
            RAISE EXCEPTION 'a guard is not whole: its kind, resource, token or owner is missing';
        END IF;
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
            SELECT CASE WHEN all_pass THEN head + n ELSE positions[n] END AS place, streams[n] AS stream, versions[n] AS version,
                   event_ids[n] AS event_id, topics[n] AS topic, states[n] AS state, causation_ids[n] AS causation_id,
                   correlation_ids[n] AS correlation_id, principals[n] AS principal
            FROM generate_series(1, events) AS n
        ) AS e
        WHERE e.place IS NOT NULL;
    GET DIAGNOSTICS stored = ROW_COUNT;

    IF leases > 0 THEN
        INSERT INTO finaz.lease_guard AS g (resource, owner, token, expires_at, released, position)
            SELECT c.resource, c.owner, c.token,
                   coalesce(clock + c.ttl_micros * interval '1 microsecond',
                            (SELECT l.expires_at FROM finaz.lease_guard AS l WHERE l.resource = c.resource LIMIT 1), clock),
                   c.released, CASE WHEN all_pass THEN head + c.event ELSE positions[c.event] END
            FROM (
                SELECT lease_appends[n] AS append, lease_events[n] AS event, lease_resources[n] AS resource, lease_owners[n] AS owner,
                       lease_tokens[n] AS token, lease_ttl_micros[n] AS ttl_micros, lease_releases[n] AS released
                FROM generate_series(1, leases) AS n
            ) AS c
            WHERE verdicts[c.append] = 0
            ORDER BY c.resource
        ON CONFLICT (resource) DO UPDATE SET
            owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at, released = excluded.released,
            position = excluded.position
        WHERE excluded.token >= g.token;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed <> leases AND changed <> (SELECT count(*) FROM unnest(lease_appends) AS c(append) WHERE verdicts[c.append] = 0) THEN
            RAISE EXCEPTION 'a fence token would go back';
        END IF;
    END IF;

    -- Rows that an event creates, then rows that a later event changes; the last event of each key wins.
    IF items > 0 THEN
        IF outbox_lanes IS NOT NULL THEN
            INSERT INTO finaz.outbox AS o (
                    kind, key, lane, priority, state, enqueued_position, enqueued_at, due_at, position, changed_at)
                SELECT DISTINCT ON (c.kind, c.key) c.kind, c.key, c.lane, c.priority, c.state, c.place, clock,
                       clock + c.delay_micros * interval '1 microsecond', c.place, clock
                FROM (
                    SELECT CASE WHEN all_pass THEN head + outbox_events[n] ELSE positions[outbox_events[n]] END AS place,
                           outbox_kinds[n] AS kind, outbox_keys[n] AS key, outbox_lanes[n] AS lane, outbox_priorities[n] AS priority,
                           outbox_states[n] AS state, outbox_delay_micros[n] AS delay_micros
                    FROM generate_series(1, items) AS n
                ) AS c
                WHERE c.lane IS NOT NULL AND c.place IS NOT NULL
                ORDER BY c.kind, c.key, c.place DESC
            ON CONFLICT (kind, key) DO UPDATE SET
                lane = excluded.lane, priority = excluded.priority, state = excluded.state,
                enqueued_position = excluded.enqueued_position, enqueued_at = excluded.enqueued_at, due_at = excluded.due_at,
                position = excluded.position, changed_at = excluded.changed_at;
        END IF;
        IF outbox_lanes IS NULL OR array_position(outbox_lanes, NULL) IS NOT NULL THEN
            UPDATE finaz.outbox AS o
                SET state = l.state, due_at = clock + l.delay_micros * interval '1 microsecond', position = l.place,
                    changed_at = clock
                FROM (
                    SELECT DISTINCT ON (c.kind, c.key) c.*
                    FROM (
                        SELECT CASE WHEN all_pass THEN head + outbox_events[n] ELSE positions[outbox_events[n]] END AS place,
                               outbox_kinds[n] AS kind, outbox_keys[n] AS key, outbox_lanes[n] AS lane, outbox_states[n] AS state,
                               outbox_delay_micros[n] AS delay_micros
                        FROM generate_series(1, items) AS n
                    ) AS c
                    WHERE c.lane IS NULL AND c.place IS NOT NULL
                    ORDER BY c.kind, c.key, c.place DESC
                ) AS l
                WHERE o.kind = l.kind AND o.key = l.key AND o.position < l.place;
        END IF;
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

-- The import function: takes a whole log, with positions, instants and ids as they were recorded, into a store in which nothing has
-- happened. Beside the append function it is the only writer of events, and it can write only where there are none.
--
-- What must stay true: one statement under the append lock, all or nothing; every row's chain value is computed again here and must be
-- the one that was brought; the lease guard and the outbox come in with the events, so that no fence is ever judged without its lease.
--
-- Reads the temporary tables imported_events, imported_lease_guard and imported_outbox of the session (`services/store/importing.sql`).
-- Raises with SQLSTATE FZ001 where the store is not empty, FZ002 where the events are not a whole log.

CREATE OR REPLACE FUNCTION finaz.import_v1(expected_events bigint, expected_chain bytea) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = finaz, pg_catalog, pg_temp
    AS $$
DECLARE
    culprit text;
    seen record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'finaz.import needs READ COMMITTED, not %', current_setting('transaction_isolation');
    END IF;
    PERFORM pg_advisory_xact_lock(439855505786);  -- the append lock

    SELECT CASE
            WHEN EXISTS (SELECT FROM finaz.events) THEN 'the log has events'
            WHEN EXISTS (SELECT FROM finaz.lease_guard) THEN 'there are leases'
            WHEN EXISTS (SELECT FROM finaz.outbox) THEN 'the outbox has rows'
            WHEN EXISTS (SELECT FROM finaz.tracking) THEN 'a reader has come further than 0'
            WHEN EXISTS (SELECT FROM finaz.snapshots) THEN 'there are snapshots'
            WHEN EXISTS (SELECT FROM finaz.projections AS p WHERE p.position > 0) THEN 'a projection has come further than 0'
        END INTO culprit;
    IF culprit IS NOT NULL THEN
        RAISE EXCEPTION '%', culprit USING ERRCODE = 'FZ001';
    END IF;

    SELECT count(*) AS events, coalesce(min(i.position), 1) AS first, coalesce(max(i.position), 0) AS last INTO seen
        FROM pg_temp.imported_events AS i;
    IF seen.events <> expected_events OR seen.first <> 1 OR seen.last <> expected_events THEN
        RAISE EXCEPTION '% events from position % to %, not %', seen.events, seen.first, seen.last, expected_events
            USING ERRCODE = 'FZ002';
    END IF;
    SELECT v.stream INTO culprit
        FROM (
            SELECT i.stream, i.version, lag(i.version) OVER (PARTITION BY i.stream ORDER BY i.position) AS before
            FROM pg_temp.imported_events AS i
        ) AS v
        WHERE v.version <> coalesce(v.before + 1, least(v.version, 1)) LIMIT 1;
    IF culprit IS NOT NULL THEN
        RAISE EXCEPTION 'the versions of stream % are not contiguous', culprit USING ERRCODE = 'FZ002';
    END IF;
    SELECT c.position INTO seen
        FROM (
            SELECT i.position, i.chain, finaz.chain_v1(decode(repeat('00', 32), 'hex'), sha256(convert_to(concat(
                       i.position, '|', i.version, '|', (extract(epoch FROM i.recorded_at) * 1000000)::bigint, '|', i.event_id, '|',
                       i.causation_id, '|', octet_length(i.stream), ':', i.stream, '|', octet_length(i.topic), ':', i.topic, '|',
                       octet_length(i.correlation_id), ':', i.correlation_id, '|', octet_length(i.principal), ':', i.principal, '|',
                       octet_length(i.state), ':', i.state
                   ), 'UTF8'))) OVER (ORDER BY i.position ROWS UNBOUNDED PRECEDING) AS computed
            FROM pg_temp.imported_events AS i
        ) AS c
        WHERE c.chain <> c.computed OR (c.position = expected_events AND c.chain <> expected_chain)
        ORDER BY c.position LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'the event at position % does not hash as it says', seen.position USING ERRCODE = 'FZ002';
    END IF;

    INSERT INTO finaz.events (
            position, version, recorded_at, event_id, causation_id, stream, topic, correlation_id, principal, state, chain)
        SELECT i.position, i.version, i.recorded_at, i.event_id, i.causation_id, i.stream, i.topic, i.correlation_id, i.principal,
               i.state, i.chain
        FROM pg_temp.imported_events AS i ORDER BY i.position;
    INSERT INTO finaz.lease_guard SELECT g.* FROM pg_temp.imported_lease_guard AS g ORDER BY g.resource;
    INSERT INTO finaz.outbox SELECT o.* FROM pg_temp.imported_outbox AS o ORDER BY o.kind, o.key;
    PERFORM pg_notify('finaz_events', expected_events::text);
    RETURN expected_events;
END
$$;

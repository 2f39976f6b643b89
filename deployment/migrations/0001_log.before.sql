-- The log and what is written inside its one append: the events, the lease guard, the outbox, the tracking positions; beside
-- them the reservations (a hint) and the snapshots (a cache). Everything is in schema finaz.

CREATE SCHEMA IF NOT EXISTS finaz;

-- Every fact, once. `state` is the event's document, canonical JSON; plain SQL reads it as json in the view finaz.log.
-- `chain` is sha256(chain of the position before || sha256(all other columns)); the exact bytes are stated in domain/chain.py.
CREATE TABLE finaz.events (
    position bigint NOT NULL,
    version bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    event_id uuid NOT NULL,
    causation_id uuid,
    stream text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    correlation_id text COLLATE "C",
    principal text COLLATE "C",
    state text COLLATE "C" NOT NULL,
    chain bytea NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (position),
    CONSTRAINT events_stream_version_key UNIQUE (stream, version),
    CONSTRAINT events_event_id_key UNIQUE (event_id),
    CONSTRAINT events_position_check CHECK (position > 0),
    CONSTRAINT events_version_check CHECK (version >= 0)
) WITH (
    -- Rows never change: vacuum only freezes and keeps the visibility map, statistics are what must stay fresh.
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05
);
CREATE INDEX events_recorded_at_idx ON finaz.events USING brin (recorded_at);

CREATE VIEW finaz.log AS
    SELECT position, stream, version, event_id, topic, state::json AS data, causation_id, correlation_id, principal, recorded_at, chain
    FROM finaz.events;

CREATE FUNCTION finaz.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only: % is refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation',
              HINT = 'A fact that was wrong is followed by another fact, never changed.';
END
$$;

CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON finaz.events
    FOR EACH STATEMENT EXECUTE FUNCTION finaz.refuse_change();
ALTER TABLE finaz.events ENABLE ALWAYS TRIGGER events_append_only;

-- One row per leased resource, the lease's last event: what every fenced append is checked against.
CREATE TABLE finaz.lease_guard (
    resource text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    released boolean NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT lease_guard_pkey PRIMARY KEY (resource)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);

-- The outbox: one row per (kind, key), the item's last event. Whether a row is due is judged when it is read.
CREATE TABLE finaz.outbox (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    state text COLLATE "C" NOT NULL,
    enqueued_position bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    due_at timestamptz NOT NULL,
    position bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    CONSTRAINT outbox_pkey PRIMARY KEY (kind, key),
    CONSTRAINT outbox_state_check CHECK (state IN ('pending', 'claimed', 'delivered'))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
-- The queue in its order; delivered rows are not in it, so a long past costs nothing.
CREATE INDEX outbox_pending_idx ON finaz.outbox (kind, lane, priority DESC, enqueued_position) WHERE state = 'pending';
CREATE INDEX outbox_claimed_idx ON finaz.outbox (kind, lane, position) WHERE state = 'claimed';

-- Which worker is about to look at which item as of its change at `position`: a hint with a short life, never truth.
CREATE TABLE finaz.reservations (
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    reserved_until timestamptz NOT NULL,
    CONSTRAINT reservations_pkey PRIMARY KEY (kind, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX reservations_reserved_until_idx ON finaz.reservations (reserved_until);

-- How far each reader of the log has come, under its frozen name. `moved_by` names the append that moved it last, so that an
-- append without events can be recognised when it is made again.
CREATE TABLE finaz.tracking (
    name text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    moved_by uuid,
    CONSTRAINT tracking_pkey PRIMARY KEY (name)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- States of long streams, by version: a cache that may be emptied at any time. The topic names the state's form and its schema.
CREATE TABLE finaz.snapshots (
    stream text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    topic text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT snapshots_pkey PRIMARY KEY (stream, version, topic)
);

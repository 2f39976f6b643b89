-- Staging: which attempt to stage an output in ClickHouse is the one that readers see.
--
-- An attempt is begun before its first row is inserted and recorded together with the projection's position; rows of any other
-- attempt are never shown, and are deleted in time: first in ClickHouse, then here. The projection's own row in finaz.projections is
-- made by whoever stages first, since a system without ClickHouse has no such projection.
CREATE TABLE finaz.staging_attempts (
    attempt uuid NOT NULL,
    generation integer NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    output text COLLATE "C" NOT NULL,
    instrument text COLLATE "C" NOT NULL,
    artifact text COLLATE "C" NOT NULL,
    rows bigint NOT NULL,
    position bigint NOT NULL,
    purpose text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'begun',
    begun_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT staging_attempts_pkey PRIMARY KEY (attempt),
    CONSTRAINT staging_attempts_purpose_check CHECK (purpose IN ('active', 'building', 'repair')),
    CONSTRAINT staging_attempts_state_check CHECK (state IN ('begun', 'recorded', 'abandoned')),
    CONSTRAINT staging_attempts_rows_check CHECK (rows >= 0)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX staging_attempts_recorded_key ON finaz.staging_attempts (generation, run_id, output) WHERE state = 'recorded';
CREATE INDEX staging_attempts_instrument_idx ON finaz.staging_attempts (generation, instrument, position) WHERE state = 'recorded';
CREATE INDEX staging_attempts_unrecorded_idx ON finaz.staging_attempts (state, begun_at) WHERE state <> 'recorded';

-- One row: a name for this database. ClickHouse keeps it too, so that two systems never take each other's rows for left-overs.
CREATE TABLE finaz.staging_system (
    one boolean NOT NULL DEFAULT true,
    system uuid NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT staging_system_pkey PRIMARY KEY (one),
    CONSTRAINT staging_system_one_check CHECK (one)
);
INSERT INTO finaz.staging_system DEFAULT VALUES;

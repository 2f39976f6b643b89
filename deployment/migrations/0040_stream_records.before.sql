-- Read models of STREAM runs: committed checkpoints, and records that were not simply taken (omitted, late, retried).
CREATE TABLE finaz.checkpoints_generations (
    generation integer NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    epoch bigint NOT NULL,
    token bigint NOT NULL,
    manifest text COLLATE "C" NOT NULL,
    manifest_hash text COLLATE "C" NOT NULL,
    next_offsets json NOT NULL,
    committed_at timestamptz NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT checkpoints_pkey PRIMARY KEY (generation, run_id, epoch)
) PARTITION BY LIST (generation);
CREATE TABLE finaz.checkpoints_g1 PARTITION OF finaz.checkpoints_generations FOR VALUES IN (1);

CREATE TABLE finaz.quarantine_generations (
    generation integer NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    state text COLLATE "C" NOT NULL,
    detail text NOT NULL,
    terminal boolean NOT NULL,
    quarantine text COLLATE "C",
    event_id text COLLATE "C",
    revision bigint,
    event_time timestamptz,
    requested boolean NOT NULL,
    requested_by text COLLATE "C",
    requested_at timestamptz,
    retries integer NOT NULL,
    retried_at timestamptz,
    recorded_at timestamptz NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT quarantine_pkey PRIMARY KEY (generation, run_id, partition, "offset")
) PARTITION BY LIST (generation);
CREATE INDEX quarantine_state_idx ON finaz.quarantine_generations (run_id, state, partition, "offset");
CREATE TABLE finaz.quarantine_g1 PARTITION OF finaz.quarantine_generations FOR VALUES IN (1);

INSERT INTO finaz.projections (name, generation, role) VALUES ('checkpoints', 1, 'active'), ('quarantine', 1, 'active');

CREATE VIEW finaz.checkpoints AS
    SELECT * FROM finaz.checkpoints_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'checkpoints' AND role = 'active');
CREATE VIEW finaz.quarantine AS
    SELECT * FROM finaz.quarantine_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'quarantine' AND role = 'active');

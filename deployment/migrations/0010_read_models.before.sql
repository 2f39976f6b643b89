-- Where each asynchronous read model stands, and the read models themselves. Everything here can be rebuilt from finaz.events.
--
-- A read model has one table partitioned by generation (`…_generations`), and a view of the copy that is being served. A rebuild
-- fills the next generation beside it and swaps by changing two rows of finaz.projections.

-- One row per copy. Rows and `position` move in one transaction. `heartbeat_at` is the runner's last sign of life; `error_…` says
-- at which event a stopped copy stands.
CREATE TABLE finaz.projections (
    name text COLLATE "C" NOT NULL,
    generation integer NOT NULL,
    role text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'running',
    position bigint NOT NULL DEFAULT 0,
    moved_at timestamptz,
    owner text COLLATE "C" NOT NULL DEFAULT '',
    heartbeat_at timestamptz,
    error_position bigint,
    error_stream text COLLATE "C",
    error_topic text COLLATE "C",
    error_code text COLLATE "C",
    error_reason text COLLATE "C",
    error_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT projections_pkey PRIMARY KEY (name, generation),
    CONSTRAINT projections_role_check CHECK (role IN ('active', 'building', 'retired')),
    CONSTRAINT projections_state_check CHECK (state IN ('running', 'paused', 'stopped')),
    CONSTRAINT projections_position_check CHECK (position >= 0),
    CONSTRAINT projections_error_check CHECK ((state = 'stopped') = (error_position IS NOT NULL))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE UNIQUE INDEX projections_active_key ON finaz.projections (name) WHERE role = 'active';
CREATE UNIQUE INDEX projections_building_key ON finaz.projections (name) WHERE role = 'building';

CREATE TABLE finaz.runs_generations (
    generation integer NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    run_revision integer NOT NULL,
    principal text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL,
    flow text COLLATE "C" NOT NULL,
    flow_name text COLLATE "C" NOT NULL,
    snapshot text COLLATE "C" NOT NULL,
    as_of timestamptz NOT NULL,
    tags text[] COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    deadline_seconds integer NOT NULL,
    deadline_at timestamptz NOT NULL,
    body_hash text COLLATE "C" NOT NULL,
    sweep_id text COLLATE "C",
    attempts integer NOT NULL,
    failures integer NOT NULL,
    token bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    cancellation_requested boolean NOT NULL,
    errors json NOT NULL,
    results json NOT NULL,
    requested_at timestamptz NOT NULL,
    started_at timestamptz,
    finished_at timestamptz,
    requested_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT runs_pkey PRIMARY KEY (generation, run_id)
) PARTITION BY LIST (generation);
CREATE INDEX runs_requested_position_idx ON finaz.runs_generations (requested_position);
CREATE INDEX runs_principal_idx ON finaz.runs_generations (principal, requested_position);
CREATE INDEX runs_state_idx ON finaz.runs_generations (state, requested_position);
CREATE INDEX runs_mode_idx ON finaz.runs_generations (mode, requested_position);
CREATE INDEX runs_sweep_id_idx ON finaz.runs_generations (sweep_id, requested_position) WHERE sweep_id IS NOT NULL;
CREATE INDEX runs_tags_idx ON finaz.runs_generations USING gin (tags);
CREATE INDEX runs_requested_at_idx ON finaz.runs_generations (requested_at);

CREATE TABLE finaz.publications_generations (
    generation integer NOT NULL,
    run_id text COLLATE "C" NOT NULL,
    output text COLLATE "C" NOT NULL,
    artifact text COLLATE "C" NOT NULL,
    values_hash text COLLATE "C" NOT NULL,
    rows bigint NOT NULL,
    schema text COLLATE "C" NOT NULL,
    flow text COLLATE "C" NOT NULL,
    inputs text[] COLLATE "C" NOT NULL,
    fence_token bigint NOT NULL,
    published_at timestamptz NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT publications_pkey PRIMARY KEY (generation, run_id, output)
) PARTITION BY LIST (generation);
CREATE INDEX publications_position_idx ON finaz.publications_generations (position);
CREATE INDEX publications_artifact_idx ON finaz.publications_generations (artifact, position);

CREATE TABLE finaz.leases_generations (
    generation integer NOT NULL,
    resource text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    label text COLLATE "C" NOT NULL,
    token bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    granted_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT leases_pkey PRIMARY KEY (generation, resource)
) PARTITION BY LIST (generation);
CREATE INDEX leases_first_position_idx ON finaz.leases_generations (first_position);
CREATE INDEX leases_expires_at_idx ON finaz.leases_generations (expires_at) WHERE state = 'GRANTED';

CREATE TABLE finaz.runs_g1 PARTITION OF finaz.runs_generations FOR VALUES IN (1)
    WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE finaz.publications_g1 PARTITION OF finaz.publications_generations FOR VALUES IN (1);
CREATE TABLE finaz.leases_g1 PARTITION OF finaz.leases_generations FOR VALUES IN (1)
    WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

INSERT INTO finaz.projections (name, generation, role) VALUES
    ('leases', 1, 'active'), ('publications', 1, 'active'), ('runs', 1, 'active');

-- What is being served. The scalar subquery is evaluated once per statement, and lets the planner skip the other copies.
CREATE VIEW finaz.runs AS
    SELECT * FROM finaz.runs_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'runs' AND role = 'active');
CREATE VIEW finaz.publications AS
    SELECT * FROM finaz.publications_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'publications' AND role = 'active');
CREATE VIEW finaz.leases AS
    SELECT * FROM finaz.leases_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'leases' AND role = 'active');

-- What operators know of projections and tell them: which code made a copy, which job, how fast it moves, what is skipped, and who
-- said what, when and why.

-- `code_version` is the version of the projection's code that made the copy. `job_id` is the job that builds it or had it served,
-- under that lease token. A retired copy may be dropped after `drop_after`. `stop_at` is the position at which an operator wants it
-- paused. `window_…` and `events_per_second` measure how fast it moves. `trouble_…` is the last fault of the infrastructure.
ALTER TABLE finaz.projections
    ADD COLUMN code_version integer NOT NULL DEFAULT 1,
    ADD COLUMN job_id text COLLATE "C",
    ADD COLUMN job_token bigint NOT NULL DEFAULT 0,
    ADD COLUMN drop_after timestamptz,
    ADD COLUMN stop_at bigint,
    ADD COLUMN window_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ADD COLUMN window_position bigint NOT NULL DEFAULT 0,
    ADD COLUMN events_per_second double precision NOT NULL DEFAULT 0,
    ADD COLUMN trouble_code text COLLATE "C",
    ADD COLUMN trouble_reason text COLLATE "C",
    ADD COLUMN trouble_at timestamptz;

-- Events that an operator has had one projection pass over, each with the reason; rebuilds and audits pass over them too.
CREATE TABLE finaz.projection_skips (
    name text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    stream text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    code text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    skipped_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT projection_skips_pkey PRIMARY KEY (name, position)
);

-- What was done to projections, by operators and by themselves (`stopped`): only ever added to.
CREATE TABLE finaz.projection_log (
    id bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    action text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    position bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT projection_log_pkey PRIMARY KEY (id)
);
CREATE INDEX projection_log_name_idx ON finaz.projection_log (name, id);

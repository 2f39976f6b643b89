-- Jobs, one row per job that operators asked for: a read model like any other. `job` is the state of its aggregate.
CREATE TABLE finaz.jobs_generations (
    generation integer NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    target text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    job json NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT jobs_pkey PRIMARY KEY (generation, job_id)
) PARTITION BY LIST (generation);
CREATE INDEX jobs_first_position_idx ON finaz.jobs_generations (first_position);
CREATE INDEX jobs_state_idx ON finaz.jobs_generations (state, first_position);
CREATE TABLE finaz.jobs_g1 PARTITION OF finaz.jobs_generations FOR VALUES IN (1);

INSERT INTO finaz.projections (name, generation, role) VALUES ('jobs', 1, 'active');

CREATE VIEW finaz.jobs AS
    SELECT * FROM finaz.jobs_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'jobs' AND role = 'active');

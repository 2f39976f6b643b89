-- Process managers: what their instances remember, and what they want done.
--
-- A manager has a row in finaz.projections like any read model: position, heartbeat, lag, pause, stop, reason. Its instances are a
-- fold of the events and can be made again (position 0, both of its tables' pending rows emptied). Commands that were issued stay:
-- they are how a replay knows what not to issue again.

-- Why an operator paused a projection or a process manager, and who.
ALTER TABLE finaz.projections ADD COLUMN pause_reason text, ADD COLUMN paused_by text COLLATE "C";

CREATE TABLE finaz.manager_instances (
    manager text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    state json NOT NULL,
    deadlines json NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT manager_instances_pkey PRIMARY KEY (manager, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);

-- `deadline` marks those that a later event may replace or clear while they are pending. `due_at` moves with each retry.
CREATE TABLE finaz.manager_commands (
    manager text COLLATE "C" NOT NULL,
    command_id uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    document json NOT NULL,
    deadline boolean NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'pending',
    due_at timestamptz NOT NULL,
    caused_by uuid NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    reason text COLLATE "C",
    principal text COLLATE "C",
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT manager_commands_pkey PRIMARY KEY (manager, command_id),
    CONSTRAINT manager_commands_state_check CHECK (state IN ('pending', 'issued', 'dead', 'discarded'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX manager_commands_due_idx ON finaz.manager_commands (manager, due_at) WHERE state = 'pending';
CREATE INDEX manager_commands_deadline_idx ON finaz.manager_commands (manager, key) WHERE state = 'pending' AND deadline;
CREATE INDEX manager_commands_dead_idx ON finaz.manager_commands (manager, changed_at) WHERE state = 'dead';

-- What the reconciler found, one row per (kind, subject): a read model like any other.
CREATE TABLE finaz.discrepancies_generations (
    generation integer NOT NULL,
    kind text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    expected text NOT NULL,
    actual text NOT NULL,
    outcome text NOT NULL,
    principal text COLLATE "C",
    times_found integer NOT NULL,
    found_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    first_position bigint NOT NULL,
    position bigint NOT NULL,
    CONSTRAINT discrepancies_pkey PRIMARY KEY (generation, kind, subject)
) PARTITION BY LIST (generation);
CREATE INDEX discrepancies_subject_idx ON finaz.discrepancies_generations (subject);
CREATE INDEX discrepancies_first_position_idx ON finaz.discrepancies_generations (first_position);
CREATE INDEX discrepancies_open_idx ON finaz.discrepancies_generations (kind, state) WHERE state <> 'SETTLED';
CREATE TABLE finaz.discrepancies_g1 PARTITION OF finaz.discrepancies_generations FOR VALUES IN (1);

INSERT INTO finaz.projections (name, generation, role) VALUES
    ('discrepancies', 1, 'active'), ('orphan_recovery', 1, 'active'), ('reconciler', 1, 'active');

CREATE VIEW finaz.discrepancies AS
    SELECT * FROM finaz.discrepancies_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'discrepancies' AND role = 'active');

-- What a run's records come from besides a snapshot: the topic of a STREAM run, how it ends and behind which run it goes on; the fault
-- schedule of a REPLAY run. NULL where there is no such thing, and in rows of code that did not know it yet.
ALTER TABLE finaz.runs_generations
    ADD COLUMN topic text COLLATE "C",
    ADD COLUMN bounded boolean,
    ADD COLUMN continues text COLLATE "C",
    ADD COLUMN schedule text COLLATE "C";

CREATE OR REPLACE VIEW finaz.runs AS
    SELECT * FROM finaz.runs_generations
    WHERE generation = (SELECT generation FROM finaz.projections WHERE name = 'runs' AND role = 'active');

-- An empty copy is as good as one that the new code made; any other is rebuilt.
UPDATE finaz.projections SET code_version = 2 WHERE name = 'runs' AND role = 'active' AND position = 0;

-- By what an operator looks for events: topic, principal, correlation, cause. Each in the order of position, so that a page of any
-- search is a few probes however long the log is. Times need none: positions are in the order of the clock, and are halved.

CREATE INDEX events_topic_idx ON finaz.events (topic, position);
CREATE INDEX events_principal_idx ON finaz.events (principal, position) WHERE principal IS NOT NULL;
CREATE INDEX events_correlation_id_idx ON finaz.events (correlation_id, position) WHERE correlation_id IS NOT NULL;
CREATE INDEX events_causation_id_idx ON finaz.events (causation_id) WHERE causation_id IS NOT NULL;

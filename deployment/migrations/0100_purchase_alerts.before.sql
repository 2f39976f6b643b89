-- What asks for an operator is found without reading through the purchases that ended well: the alerts by place, and whatever is open
-- or has an alert by age. The second index serves what the one before it served, too.
CREATE INDEX purchases_alerts_idx ON finaz.purchases_generations (first_position) WHERE cardinality(alerts) > 0;
CREATE INDEX purchases_unsettled_idx ON finaz.purchases_generations (state_since)
    WHERE state NOT IN ('CONFIRMED', 'COMPENSATED') OR cardinality(alerts) > 0;
DROP INDEX finaz.purchases_open_idx;

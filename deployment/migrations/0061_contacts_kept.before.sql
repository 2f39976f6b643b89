-- Each address is looked at once, a day after it was written: one that a purchase refers to is kept from then on, the others go.
ALTER TABLE finaz.contacts ADD COLUMN kept boolean NOT NULL DEFAULT false;
CREATE INDEX contacts_unseen_idx ON finaz.contacts (made_at) WHERE NOT kept;
DROP INDEX finaz.contacts_made_at_idx;

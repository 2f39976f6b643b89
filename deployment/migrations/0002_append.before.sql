-- The append function, as `services/store/append.sql` states it. Applied databases remember its checksum: once released, a changed
-- function gets a new name (append_v2), a new file and a new migration, so that old processes keep theirs until they are gone.

-- include: services/store/append.sql

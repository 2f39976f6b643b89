-- The import function, as `services/store/import.sql` states it.

-- include: services/store/import.sql

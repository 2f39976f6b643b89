-- The append function with fewer statements, as `services/store/append_v2.sql` states it. Old processes go on with append_v1.

-- include: services/store/append_v2.sql

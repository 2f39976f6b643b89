"""The read model of records that a STREAM run did not simply take: omitted, late, retried."""

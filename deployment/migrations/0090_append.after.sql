-- Nobody calls the first append function any more.

DROP FUNCTION finaz.append_v1;

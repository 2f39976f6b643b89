"""Places before and after each insert of staged rows where a test can plant a crash."""

from typing import Final

INSERT_BEFORE: Final = "staging_insert.before"
INSERT_AFTER: Final = "staging_insert.after"

"""Every event there is: importing this module registers all topics.

What must stay true: whoever decodes events imports this, so that a fresh process reads whatever the log holds, not only what
its own part of the code happens to use. A new context adds its messages here; a test compares with the folders and the samples.
"""

from domain.admission import messages as admission
from domain.checkpoints import messages as checkpoints
from domain.discrepancies import messages as discrepancies
from domain.jobs import messages as jobs
from domain.leases import messages as leases
from domain.purchases import messages as purchases
from domain.runs import messages as runs
from domain.stream import messages as stream

MESSAGES = (admission, checkpoints, discrepancies, jobs, leases, purchases, runs, stream)
"""The modules that define events."""

"""The loop around `Sealer.run_once`: looks every few seconds, and says what it sealed or why it could not.

What must stay true: it never dies of what the log or the store of seals does; that the log is not what was sealed is told at every
look, loudly, and nothing is sealed until somebody has settled that. A crash leaves what the sealer leaves.
"""

import threading
from typing import Final

from domain.errors import FinazError
from domain.log_errors import SealTakenError
from projections.runner import Report, unheard
from services.seals import Sealer

LOOK_SECONDS: Final = 5.0
"""Between two looks at the log's end."""


class SealerLoop:
    """The body of a thread; started, woken and stopped as a projection's runner is."""

    name = "sealer"
    progress = None

    def __init__(self, sealer: Sealer, report: Report = unheard, look_seconds: float = LOOK_SECONDS) -> None:
        self._sealer = sealer
        self._report = report
        self._look_seconds = look_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        """Look until stopped."""
        while not self._stopping.is_set():
            self.run_once()
            self._stopping.wait(self._look_seconds)

    def run_once(self) -> None:
        """One look; whatever fails is told."""
        try:
            seal = self._sealer.run_once()
        except SealTakenError:
            return  # another process seals: the next look goes on behind its seal
        except FinazError as error:
            self._report("not_sealed", {"error": str(error), "code": error.code})
        except Exception as error:  # a defect must not end the loop
            self._report("not_sealed", {"error": repr(error), "code": FinazError.code})
        else:
            if seal is not None:
                self._report("sealed", {"seal": seal.name, "position": seal.position, "chain": seal.chain})

    def wake(self) -> None:
        """Nothing: it looks by the clock."""

    def stop(self) -> None:
        """End after the look at hand."""
        self._stopping.set()

    def interrupt(self) -> None:
        """Nothing can be cut off: a look is short."""

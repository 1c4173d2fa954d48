"""The errors a person sees: one clear sentence, and what to do about it."""


class NearmetalError(Exception):
    """Something a person can act on.

    ``message`` is one sentence; ``remedy`` says what to do. The CLI prints both and no traceback.
    """

    exit_status = 2

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class PathError(NearmetalError):
    """An environment path that cannot be read, or names an unknown layer or parameter."""


class CannotRun(NearmetalError):
    """An environment that cannot run here: ``message`` is why, ``remedy`` the way out."""


class MachineFailed(NearmetalError):
    """A machine that did not come up, hung, panicked, or went away. Its console is kept."""


class WorkloadFailed(NearmetalError):
    """A run whose output is wrong or cannot be read; never a number."""


class Interrupted(NearmetalError):
    """The user or the system ended the lab; everything finished is kept."""

    exit_status = 130

"""The one error a rehearsal reports to its user."""


class RehearsalError(Exception):
    """A rehearsal cannot be prepared or started.

    The message is one line that names the setting, the value seen and the fix.
    ``exit_code`` is 2 for a misuse (an unknown fault name) and 1 for everything else.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code

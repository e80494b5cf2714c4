class UserError(Exception):
    """Something the user can mend; its text is shown as it is, without a traceback.

    ``exit_code`` is 2 for wrong input and 1 for a step that failed.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(message)
        self.exit_code = exit_code

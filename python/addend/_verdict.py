"""The verdicts of all reports: the words with which they begin and end, and the exit statuses of the commands. The C
library has the same table (core/include/addend/verdict.h); docs/verdicts.md says what each verdict means."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """What a report begins and ends with."""

    words: str
    status: int  # exit status of check, diff and torch-check
    of_matrix: int  # exit status of torch-matrix: 3 where cells are left that could not be judged


MATCHES = Verdict("matches", 0, 0)
DOES_NOT_MATCH = Verdict("DOES NOT MATCH", 1, 1)
CANNOT_TELL = Verdict("CANNOT TELL", 1, 3)
NOT_CHECKED = Verdict("NOT CHECKED", 1, 3)
ALL = (MATCHES, DOES_NOT_MATCH, CANNOT_TELL, NOT_CHECKED)

"""What a person reads of a run without opening its report."""

from perfsuite.terminal.accounts import Account, accounts_of, bare_accounts
from perfsuite.terminal.costs import costs
from perfsuite.terminal.summary import first_line, skip_lines, summary
from perfsuite.terminal.ticker import Ticker

__all__ = [
    "Account",
    "Ticker",
    "accounts_of",
    "bare_accounts",
    "costs",
    "first_line",
    "skip_lines",
    "summary",
]

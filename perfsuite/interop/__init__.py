"""What perfsuite exchanges with other tools."""

"""How reads by the host are counted."""

import perfsuite

READS = perfsuite.Metric("host_reads", better="lower")
# The host waits and reads a scalar.
READ = "item"

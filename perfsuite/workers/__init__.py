"""Fresh processes that measure; any death of one is a result."""

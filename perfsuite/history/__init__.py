"""Results over months: stored in SQL, shifts found, pages of trends."""

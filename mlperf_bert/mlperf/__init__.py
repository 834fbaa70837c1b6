"""MLPerf's rules as code, what a run logs, how logs are read."""

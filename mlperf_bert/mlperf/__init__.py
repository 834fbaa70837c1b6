"""What MLPerf asks: the rules as code, what a run logs, how logs are read."""

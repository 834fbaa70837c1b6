"""What MLPerf asks: the rules as code, the MLLOG, the official checkers."""

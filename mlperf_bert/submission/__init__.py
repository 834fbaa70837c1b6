"""What makes runs a submission: campaigns, the official tools, verdicts, reports."""

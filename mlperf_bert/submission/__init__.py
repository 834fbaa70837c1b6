"""From runs to a submission: campaigns, the official tools, verdicts, reports."""

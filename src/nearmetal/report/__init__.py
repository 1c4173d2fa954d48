"""The report: pure functions of :class:`nearmetal.report.findings.Findings`."""

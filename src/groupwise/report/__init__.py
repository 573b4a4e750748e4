"""`report.html`: a run, or several laid over each other, in one file. Imports no torch."""

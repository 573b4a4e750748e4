"""The report page: one HTML file about one run or several overlaid runs. Imports no torch."""

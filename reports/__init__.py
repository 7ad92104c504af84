"""Reports: a study as one HTML page. Plotly is imported here only."""

"""Reports: a study as one HTML page. Only this package imports Plotly."""

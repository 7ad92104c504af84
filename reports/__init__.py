"""A study as one HTML page. Plotly lives here."""

"""Reports of studies as HTML pages. Only this package imports Plotly."""

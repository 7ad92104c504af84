"""What an OpenTelemetry collector is told: spans that say where time and money of a study went."""

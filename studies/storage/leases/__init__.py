"""Who may drive a study: leases, heartbeats, and what dead controllers left."""

"""Leases for driving a study, their heartbeats, and the pools that dead controllers left."""

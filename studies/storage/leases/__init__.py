"""Leases: the right to drive a study, their heartbeats, and charges for the slots of dead controllers."""

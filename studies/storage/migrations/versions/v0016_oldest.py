"""Oldest version that is upgraded. A new store gets its tables from `studies.storage.schema.tables` instead."""

revision = "0016"
down_revision = None

"""The holder of a lease may share its cluster: the lease's row has the cluster's address and token."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("automl_leases", sa.Column("cluster_address", sa.String(255), nullable=True))
    op.add_column("automl_leases", sa.Column("cluster_token", sa.String(128), nullable=True))

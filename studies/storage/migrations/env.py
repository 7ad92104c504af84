"""Runs the migrations, on the connection that `studies.storage.schema.engine` opened."""

from alembic import context

from studies.storage.schema.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    # Optuna's tables are in the same database, and Optuna migrates them itself.
    include_name=lambda name, kind, _: kind != "table" or str(name).startswith("automl_"),
)
with context.begin_transaction():
    context.run_migrations()

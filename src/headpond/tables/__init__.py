"""Where changes land: Delta tables, their names, and what is kept beside them.

::

    lake · apply            of DSQL changes: the tables, one micro-batch to all of them
    ledger · ledger_apply   of QLDB records
    delta                   one Delta table: open, read, merge, retry
    typed · naming · partitions                     columns, names and folders of a table
    current · history · log · documents             what a target keeps
    state · pending · tombstones · conflicts · schema_changes · unknown · journal · batch_log   `_headpond/…`
    bootstrap · parquet_source · catch_up · requeue · optimize · repartition · redact     of commands

The order of writes is: quarantine, pending, tombstones, table. Each write is harmless when it is repeated.
"""

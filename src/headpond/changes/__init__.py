"""From messages to the newest whole change per key: step functions over Arrow batches.

::

    decoders ─► dsql · dsql_rows · dsql_images     change records to typed rows, quarantine, pending chunks
             └► qldb · qldb_facts · qldb_exported  revisions to typed rows, facts of the journal
    assemble · chunk_groups                        chunks to whole changes
    latest · history · documents · contested       which version wins (SCD 1, SCD 2, revisions)
    schema_changes · unknown · suggest*            what is seen beside: columns, tables, types
    journal · journal_*                            the proof of a ledger
    config · qldb_config · schemas · model · keys  what all of these share

A step takes the state and a batch and gives the new state and outputs; Spark, the command line and the tests
drive the same functions. Nothing here reads or writes.
"""

"""Bytes to values and back: no Spark, no AWS client, no clock, no I/O.

::

    kpl       kpl_decode · kpl_encode · kpl_pack · kpl_wire     one aggregate        kpl_batch_*    many
    dsql      dsql_types · json_strict                          one change record    dsql_batch …   many
    ion       ion_check · ion_hash · ion_text · ion_from_text   one value            ion_columns …  many
    qldb      qldb_blocks · qldb_hash · qldb_export             one stream record    qldb_batch …   many
    headers   window_values · window_keys · outer_join_buffer   one entry            *_batch        many
    archive   kinesis_records · rows                            lines of files; the rows that all rooms share

A format has one strict reader of one thing, which is the oracle, and one reader of many, which agrees with
it and makes no Python object per record. `*_shape*`, `*_quick*` and `*_match` are parts of the latter:
records of one shape are read together, what is unlike its neighbours goes to the strict one.
"""

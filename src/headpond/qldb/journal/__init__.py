"""The proof of a QLDB journal: facts, how they accumulate, what is checked, digests.

::

    decoded batch ─► facts ─► known (each once, by range) ─► check ─► anomalies, pending
                                        ├─► proof            a saved digest against the journal
                                        └─► known.summarize  the journal in figures
"""

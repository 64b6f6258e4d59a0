"""Amazon QLDB: stream records, journal exports, documents and the proof of the journal. No I/O.

::

    bytes      files                        cut files and exported objects into records
               records · hash               one record, one exported block, strictly: the judge
               batch · schemas · columns    many records to Arrow tables, documents to typed columns
               shapes/                      the same for records of one shape, faster; frozen
    meaning    decode · config              user records to revisions by table, and facts of the journal
               documents                    which revision of a document wins
               suggest                      a configuration from what was seen
    proof      journal/                     facts, ranges, checks, digests, figures
"""

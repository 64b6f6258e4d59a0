"""Ion 1.0, straight from the bytes, as far as QLDB needs it; knows nothing of QLDB. No I/O.

::

    binary     nodes, lengths, scalars, a fold          text            Ion binary to Ion text and JSON
    symbols    what symbol ids mean                     text_reader     Ion text to Ion binary
    stream     checked values, one taken out            column_types    one value to a declared type
    hash       the Ion hash of a value                  timestamps · write

Everything takes bytes and places in them; a value is a `Node` with its `Symbols`, or both as an `IonPart`.
amazon.ion is not used: it has no places of values in a damaged text to go on from.
"""

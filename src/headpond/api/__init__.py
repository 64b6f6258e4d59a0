"""What `import headpond` offers: a pipeline run, looked at and read from Python, in a session or a notebook.

::

    running     run: a pipeline to its end, and its summary
    looking     status: where a pipeline stands, and how it is shown
    reading     tables and quarantine of a lake, by its path or its pipeline
    records     inspect: what the bytes of a record are

The commands of the same names are this, seen through a terminal.
"""

"""The command line: parse, call, print.

A command is a module of its own, named as it is typed, and loaded when it is asked for (`main`); those that
need no Spark never import it. `inputs` and `output` are what they share: options, inputs, and one way to
report results, progress and errors. `report` draws pages.
"""

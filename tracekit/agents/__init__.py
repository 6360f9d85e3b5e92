"""What a program that talks asks of tracekit: tools with bounded answers over the profiles below some directories.

`server` speaks the Model Context Protocol and alone imports its library; all else are plain functions.
"""

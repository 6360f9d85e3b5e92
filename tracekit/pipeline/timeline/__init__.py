"""Merged timeline: the traces of all ranks of a run as one Chrome trace (`document.export_timeline`).

`lanes` assigns every process its place and clock correction, `rows` and `arguments` turn a trace into JSON,
`annotations` adds steps, stages and findings, `document` writes the file.
"""

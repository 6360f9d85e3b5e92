"""All ranks of a run on one time axis: one Chrome trace made of many (`document.export`).

`lanes` says where every process is drawn and on whose clock, `rows` and `arguments` turn one
trace into text, `annotations` adds what was concluded, `document` puts the pieces together.
"""

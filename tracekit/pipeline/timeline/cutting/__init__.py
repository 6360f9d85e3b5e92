"""Cuts: the smallest trace that still shows a finding (`search.cut_profile`).

`chrome` and `nsys` select the rows of a window and write them, `windows` lists the windows to try, `names` replaces the
names of the user by placeholders, `search` tries windows from small to large until an analysis finds the finding again.
"""

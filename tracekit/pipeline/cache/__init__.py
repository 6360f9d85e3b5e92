"""Files kept on disk: measurements of each file, the index of files, saved measurements."""

"""Inputs of the explorer page: the data of processes from several files."""

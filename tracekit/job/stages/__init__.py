"""Stages of the job: windows, durations, work, periods and the matrix by role and step."""

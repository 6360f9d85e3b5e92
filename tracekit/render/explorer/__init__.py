"""The explorer page: one HTML file with the whole recording, written from a report and the data of its processes."""

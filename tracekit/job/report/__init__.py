"""Tables, charts and evidence for reports."""

"""Steps and stages of one process, and where its recording and its work begin."""

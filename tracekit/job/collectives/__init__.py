"""Collectives of the job: matching across ranks, clock offsets, traffic and slow links."""

"""Texts for a database: distinct and valid UTF-8."""

from __future__ import annotations

import numpy as np

from tracekit.model.tables.arrays import Coded, choose_narrowest


def encode_distinct_utf8(array: Coded) -> Coded:
    r"""Escape lone surrogates, which UTF-8 cannot encode, and give equal texts one code.

    >>> encode_distinct_utf8(Coded(np.array([1, 0, 2, -1]), ("a\udc80", "b", "b"))).texts
    ('a\\udc80', 'b')
    """
    texts = [text.encode("utf-8", "backslashreplace").decode("utf-8") for text in array.texts]
    if tuple(texts) == array.texts and len(set(texts)) == len(texts):
        return array
    code_of: dict[str, int] = {}
    table = np.full(len(texts) + 1, -1, choose_narrowest(len(texts)))
    for place, text in enumerate(texts):
        table[place] = code_of.setdefault(text, len(code_of))
    return Coded(table[array.codes], tuple(code_of))

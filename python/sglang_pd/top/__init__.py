"""``sglang-pd top``: a live view of prefill and decode servers on a terminal.

``fetch`` asks the servers, ``reading`` makes one server's answers into numbers, ``rates`` compares two readings,
``screen`` makes lines of them, ``commands`` repeats. All but ``fetch`` and ``commands`` is pure.
"""

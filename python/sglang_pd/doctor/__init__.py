"""``sglang-pd doctor``: what is wrong with a running prefill-decode deployment, from evidence gathered in one go.

``collect`` asks and reads, and changes nothing; ``evidence`` is what came of it, which ``masking`` has freed of secrets
and ``bundle`` keeps in a file; ``case`` reads it the way rules want it; each of ``rules`` knows one fault; ``report``
tells people what they found. Only ``collect`` and what it uses touch the system, so a bundle is judged anywhere.
"""

"""bf16 index keys for DeepSeek-V4's lightning indexer: store, query, logits.

The indexer scores every compressed key of a request and keeps the best 512:

    logit[n] = sum over heads h of weight[h] * relu(query[h] . key[n])

Keys are kept in pages of 64 slots; :mod:`.layout` says how. Each op has a file with its kernel and its checked entry
point, and a counterpart in :mod:`.reference`, in PyTorch, of any precision.

| Op | Module |
|---|---|
| norm, rope, Hadamard, store into pages | :mod:`.store` |
| rope, Hadamard of queries; head weights | :mod:`.query` |
| logits of one row per request, keys split over programs | :mod:`.decode_logits` |
| logits of many rows per request, which share their keys | :mod:`.prefill_logits` |
"""

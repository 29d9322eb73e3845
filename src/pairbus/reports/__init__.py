"""The two reports that PairBus makes from logs: the bill (`pairbus cost`) and the certificate (`pairbus reconcile`).

- `bill`: the cost model, prices, estimates, and the values of the bill and of what-if. Pure.
- `certificate`: the values of the certificate.
- `inputs`: finds the files of a report.
- `engines`: compute the values from the files.
- `views`: show the values as terminal text, JSON or HTML.
"""

"""Other loaders over the same documents, each in its own format and process, so that one can be missing.

    python -m benchmarks.peers NAME --data FOLDER [--prepare] [--workers 0] [--documents 512] [--seconds 3]

Prints one line of JSON. Needs nothing of ours but the documents (`documents.arrow`, written by
`benchmarks.loader`), so that an environment with the peers alone will do.
"""

"""The offline job behind ``evenload pack``: any data in, packs of at most ``max_tokens`` tokens out.

Two passes: lengths, then tokens. In between stands a plan that depends on lengths, settings and seed
alone, so that the output is the same for any number of workers and after any interruption.
"""

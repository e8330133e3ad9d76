"""Images, audio and video in samples: counted from headers, decoded after planning.

Nothing here imports Pillow, soundfile, av or transformers before a medium of that kind is touched.
"""

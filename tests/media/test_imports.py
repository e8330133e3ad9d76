import subprocess
import sys


def test_loaders_and_the_media_modules_import_no_media_library():
    code = (
        "import loaders, loaders.sources.multimodal, loaders.media.presence, sys;"
        "loaders.DataLoader;"
        "print([name for name in ('PIL', 'soundfile', 'av', 'transformers') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_missing_library_is_named_with_its_extra(monkeypatch):
    import pytest

    from loaders.media.headers import audio_header, image_header, video_header

    for module, extra, look in (
        ("PIL", "vision", image_header),
        ("soundfile", "audio", audio_header),
        ("av", "video", video_header),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=rf"pip install 'evenload\[{extra}\]'"):
            look(b"some bytes")

import pytest
from corpus import cut_documents, docstrings, library_files, train_tokenizer, write_corpus

FILES = 25


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """The same small corpus written twice, and once more cut into short rows."""
    folders = [tmp_path_factory.mktemp("corpus") for _ in range(3)]
    tables = [
        write_corpus(out, max_files=FILES, cut=cut)
        for out, cut in zip(folders, (None, None, 100), strict=True)
    ]
    return folders, tables


def test_the_same_installation_gives_the_same_bytes(corpora):
    (first, second, _), _ = corpora
    for name in ("code.parquet", "docs.parquet", "tokenizer.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_rows_know_their_length_and_every_text_comes_back(corpora, tmp_path):
    from tokenizers import Tokenizer

    folders, tables = corpora
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    code = tables[0]["code"]
    assert code["num_tokens"].to_pylist() == [len(row) for row in code["input_ids"].to_pylist()]
    *tokens, end = code["input_ids"][0].as_py()
    assert end == tokenizer.token_to_id("<|end|>")
    assert tokenizer.decode(tokens).startswith('"""')


def test_cut_rows_are_short_and_hold_the_whole_documents(corpora):
    _, (whole, _, cut) = corpora
    for source in ("code", "docs"):
        assert max(cut[source]["num_tokens"].to_pylist()) == 100
        tokens = [token for row in whole[source]["input_ids"].to_pylist() for token in row]
        assert tokens == [token for row in cut[source]["input_ids"].to_pylist() for token in row]


def test_a_piece_is_named_by_its_place():
    names, pieces = cut_documents(["a", "b"], [range_of(5), range_of(2)], cut=2)
    assert names == ["a[0:2]", "a[2:4]", "a[4:5]", "b"]
    assert [piece.tolist() for piece in pieces] == [[0, 1], [2, 3], [4], [0, 1]]


def range_of(size):
    import numpy as np

    return np.arange(size, dtype=np.int32)


def test_docstrings_carry_the_names_of_what_they_document():
    import ast

    source = '"""module"""\nclass A:\n  """class"""\n  def f(self):\n    """method"""\n  def g(self): pass\n'
    found = [(document.name, document.text) for document in docstrings("m", ast.parse(source))]
    assert found == [("m", "module"), ("m.A", "class"), ("m.A.f", "method")]


def test_tests_of_the_library_are_left_out(tmp_path):
    for name in ("b.py", "a/x.py", "a/test/y.py", "test/z.py", "site-packages/w.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("pass")
    assert [path.relative_to(tmp_path).as_posix() for path in library_files(tmp_path)] == ["a/x.py", "b.py"]


def test_files_that_do_not_parse_are_counted(tmp_path, capsys):
    library = tmp_path / "library"
    library.mkdir()
    (library / "good.py").write_text('"""A good module."""\n')
    (library / "empty.py").write_text("")
    (library / "broken.py").write_text("def (")
    (library / "latin.py").write_bytes(b'"""\xff"""')
    tables = write_corpus(tmp_path / "out", root=library)
    assert tables["code"]["name"].to_pylist() == ["good.py"]
    assert "1 empty texts, 2 unreadable files" in capsys.readouterr().out


def test_no_text_is_out_of_the_vocabulary():
    tokenizer = train_tokenizer(["some text", "some more text"], vocabulary=300)
    for text in ("naïve ☃", "\x00\t\r\n", "日本語"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text

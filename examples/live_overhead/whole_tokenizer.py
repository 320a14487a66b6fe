"""A tokenizer with a word for every id that a model can answer with.

Models with dummy weights may come with a small tokenizer and answer with ids that it lacks. Such a token has no text,
and as long as an answer has none, vLLM's detokenizer decodes the whole prompt anew for each token: 26 ms at 34K.
"""

from __future__ import annotations

import json
from pathlib import Path


def words(model: Path) -> int:
    """How many ids the model can answer with."""
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def whole_tokenizer(model: Path, directory: Path) -> Path:
    """Where a tokenizer for the model lies: beside it, if it has all words, else in `directory`, where it is made."""
    from tokenizers import Tokenizer

    count = words(model)
    if Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size() >= count:
        return model
    write_words(count, directory)
    return directory


def write_words(count: int, directory: Path) -> None:
    """Write a tokenizer of so many words, whose texts are their numbers, into a directory."""
    from tokenizers import Tokenizer, decoders, models

    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0"))
    made.decoder = decoders.Fuse()
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))

"""SentencePiece vocabularies of GGUF files (Llama 2, Mistral, TinyLlama) as byte-fallback BPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

from engine.models.vocabulary import SPACE_MARK

NORMAL, UNKNOWN = 1, 2
"""Values of `tokenizer.ggml.token_type`."""


def sentence_piece_backend(
    tokens: Sequence[str], scores: Sequence[float], kinds: Sequence[int], has_prefix: bool
) -> Tokenizer:
    """Build the tokenizer; merges follow from the scores, the best first.

    Args:
        tokens: texts by id, spaces as U+2581, bytes as "<0xAB>".
        scores: one for each token; a higher one merges earlier.
        kinds: `tokenizer.ggml.token_type` of each token; only NORMAL ones come of merges.
        has_prefix: a space is put before the text.
    """
    ids = {text: index for index, text in enumerate(tokens)}
    merges = [pair for _, pair in sorted(_merges(ids, scores, kinds), key=lambda item: -item[0])]
    unknown = tokens[kinds.index(UNKNOWN)] if UNKNOWN in kinds else None
    model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(model)
    mark = normalizers.Replace(" ", SPACE_MARK)
    prefixed = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), mark])
    backend.normalizer = prefixed if has_prefix else mark
    spaces: list[decoders.Decoder] = [
        decoders.Replace(SPACE_MARK, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if has_prefix:
        spaces.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(spaces)
    return backend


def _merges(
    ids: Mapping[str, int], scores: Sequence[float], kinds: Sequence[int]
) -> list[tuple[float, tuple[str, str]]]:
    """Every way to put a token together from two others, with the token's score."""
    found = []
    for text, index in ids.items():
        if kinds[index] != NORMAL:
            continue
        cuts = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        known = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(scores[index], pair) for pair in known]
    return found

"""Nasty text in WikiExtractor's format, made from a seed: the input of the self-contained oracles.

Runs on any Python from 3.7 on, so that the reference's own stack can read the very same bytes.
"""

import random

_WORDS = (
    "the of a Dr. St. e.g. U.S. i.e. no. 3.5 1,000 12. Zürich naïve Ωmega 東京 Привет A. B. C. "
    "end. Stop! Why? \"Yes.\" 'No!' (See.) [x] ... wait... etc. “quoted.” ‘so?’ «oui.» a.m. p.m. "
    "word-- -- Inc. vs. Vol. 5. Next It He was. Is? X!! ok.) done.] fin.} co-op e̊a \u200bzero "
    "tab\there nb\u00a0sp ş. İ. ß. Ǆ. ﬁ. 5.5.5. .net .5 ..two 'tis. \u3000wide"
).split(" ")
_MARKUP = (
    "[[link]] [[target|shown]] [[File:a.png|thumb]] [[file:b|c]] [[:File:c]] [[Media:x]] "
    "[[image:y]] [[Category:Z]] [plain] [a|b] [[a|b|c]] [[[[deep]]]] [[a [b] c]] alt= <br> </br> "
    "<BR> <Br> <ref>note</ref> <ref name=x> </ref> <Ref y> <http://a> <div class=a> </div> "
    "</div style> <sup>2</sup> <small>s</small> <math>x</math> <chem>H2O</chem> <ins>i</ins> "
    "<section begin=a/> <meta x/> <hr/> <gallery mode=a> </gallery> <mapframe w=1/> <mapframe "
    "z> </mapframe> <poem> </poem> <poem style=a> <nowiki> </nowiki> <NOWIKI> <onlyinclude> "
    "<includeonly>i</includeonly> <noinclude> <graph>{ }</graph> <graph>g</graph> </references> "
    "<, ref x</ref> <del> </del> ]] [[ | ] [ <ref a<b</ref> \\ <section a\\b/> <hr a/> b/>"
).split(" ")


def wiki_text(seed: int) -> str:
    """One file of 120 articles."""
    rng = random.Random(seed)
    pieces = []
    for number in range(120):
        pieces.append(f'<doc id="{number}" url="u?curid={number}" title="T {number}">\n')
        pieces.append(f"T {number}\n\n")
        for _ in range(int(rng.random() * 6)):
            pieces.append(_line(rng))
            pieces.append(_ENDS[int(rng.random() * len(_ENDS))])
        pieces.append("</doc>\n" if rng.random() < 0.95 else "\n</doc>")
    return "".join(pieces)


_ENDS = ("\n", "\n\n", "\r\n", "\r", "\n \n", " \n", "\x85\n", "\u2028\n")


def _line(rng: random.Random) -> str:
    words = []
    for _ in range(1 + int(rng.random() * 40)):
        chosen = _MARKUP if rng.random() < 0.15 else _WORDS
        words.append(chosen[int(rng.random() * len(chosen))])
    return (" " if rng.random() < 0.9 else "  ").join(words)


def sentences(seed: int, num_documents: int = 30) -> str:
    """One sentence a line, blank lines between documents; some lines and documents are odd."""
    rng = random.Random(seed)
    lines = []
    for _ in range(num_documents):
        for _ in range(1 + int(rng.random() * 25)):
            lines.append(_line(rng) if rng.random() < 0.97 else _ODD_LINES[len(lines) % 5])
        lines.append("")
    return "\n".join(lines)


_ODD_LINES = ("\u200b", "x" * 201, "[CLS] [SEP] [MASK] [UNK] [unused7]", "\t ", "a\rb\x1cc\u2028d")


def vocabulary(seed: int) -> str:
    """A WordPiece vocabulary that covers some of the words whole, some in pieces, some not."""
    rng = random.Random(seed)
    tokens = ["[PAD]", "[unused7]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = sorted({char for word in _WORDS for char in word.lower() if char.isalnum()})
    tokens += [char for char in characters if rng.random() < 0.9]
    tokens += ["##" + char for char in characters if rng.random() < 0.9]
    tokens += list(".,!?'\"()-[]")
    for word in _WORDS:
        stem = "".join(char for char in word.lower() if char.isalpha())
        if stem and rng.random() < 0.5 and stem not in tokens:
            tokens.append(stem)
    return "".join(token + "\n" for token in tokens)

"""The facts of the encyclopedia: a world of invented countries, and the facts of each article.

Facts of the world (which language is spoken in which country, who fought in which war, what a
fox eats) hold in all articles: a model can know them. Facts of an article (its river, its founder,
its year) hold in that article alone: a model must find them in the sentences around.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Facts = dict[str, str]

WORDS = json.loads(Path(__file__).with_name("words.json").read_text(encoding="utf-8"))
"""What is drawn: `kinds` has the facts of each kind of article, in the order in which they are
drawn, and where each comes from: a list of words, of names of the world, or one of `_MADE`. A word
that has facts of its own, such as an animal, brings them along."""
_HE = {"Pronoun": "He", "pronoun": "he", "object": "him", "possessive": "his", "parent": "father"}
_SHE = {"Pronoun": "She", "pronoun": "she", "object": "her", "possessive": "her"} | {
    "parent": "mother"
}
_NUM_COUNTRIES = 12
_NUM_TOWNS = 100
_NUM_RIVERS = 60
_NUM_LAST_NAMES = 100


@dataclass(frozen=True)
class World:
    """What all articles share.

    Attributes:
      countries: the facts of each country, its war with its enemy among them.
      towns, rivers, last_names: names to draw from; an article's choice says nothing of another's.
    """

    countries: tuple[Facts, ...]
    towns: tuple[str, ...]
    rivers: tuple[str, ...]
    last_names: tuple[str, ...]


def make_world(rng: random.Random) -> World:
    """Invents countries, in pairs that fought a war against each other, and names."""
    countries = [_country(rng) for _ in range(_NUM_COUNTRIES)]
    for one, other in zip(countries[::2], countries[1::2], strict=True):
        one["war"] = other["war"] = _word(rng)
        for own, enemy in ((one, other), (other, one)):
            own["enemy"] = enemy["country"]
            for fact in ("adjective", "capital", "language", "currency"):
                own[f"enemy_{fact}"] = enemy[fact]
    return World(
        countries=tuple(countries),
        towns=_names(rng, "town_endings", _NUM_TOWNS),
        rivers=_names(rng, "river_endings", _NUM_RIVERS),
        last_names=_names(rng, "last_name_endings", _NUM_LAST_NAMES),
    )


def make_facts(kind: str, world: World, rng: random.Random) -> Facts:
    """Returns the facts of a new article, its country's and its own; fact "name" is the title."""
    facts = dict(rng.choice(world.countries))
    for fact, source in WORDS["kinds"][kind].items():
        facts |= _draw(fact, source, world, rng)
    if kind == "artist":
        facts["name"] = f"{facts['first']} {facts['last']}"
    return facts


def _draw(fact: str, source: str, world: World, rng: random.Random) -> Facts:
    """One fact; two that differ, as in "town, other_town"; or a word with facts of its own."""
    if source == "person":
        return _person(world, rng)
    if source in _MADE:
        return {fact: _MADE[source](world, rng)}
    words = getattr(world, source, None) or WORDS[source]
    if ", " in fact:
        return dict(zip(fact.split(", "), rng.sample(words, 2), strict=True))
    word = rng.choice(tuple(words))
    return {fact: word} | (words[word] if isinstance(words, dict) else {})


def _country(rng: random.Random) -> Facts:
    stem = _word(rng)
    return {
        "country": stem + rng.choice(("ia", "land", "mark")),
        "adjective": stem + rng.choice(("ian", "ish")),
        "capital": _word(rng) + rng.choice(("grad", "polis")),
        "language": _word(rng) + "ic",
        "currency": _word(rng).lower() + "s",
        "mountains": _word(rng),
        "sea": _word(rng),
        "ruler": rng.choice(WORDS["rulers"]),
        "crop": rng.choice(WORDS["crops"]),
    }


def _person(world: World, rng: random.Random) -> Facts:
    """Returns first and last name with the pronouns that go with them."""
    names, pronouns = rng.choice(((WORDS["his_names"], _HE), (WORDS["her_names"], _SHE)))
    return {"first": rng.choice(names), "last": rng.choice(world.last_names), **pronouns}


def _full_name(world: World, rng: random.Random) -> str:
    names = WORDS["his_names"] + WORDS["her_names"]
    return f"{rng.choice(names)} {rng.choice(world.last_names)}"


def _ship_name(_: World, rng: random.Random) -> str:
    return f"{rng.choice(WORDS['colours']).title()} {rng.choice(WORDS['titles'])}"


_MADE: dict[str, Callable[[World, random.Random], str]] = {
    "full_name": _full_name,
    "ship_name": _ship_name,
    "title": lambda world, rng: f"The {_ship_name(world, rng)}",
    "year": lambda _, rng: str(rng.randrange(1100, 1950, 25)),
    "length": lambda _, rng: str(rng.randrange(25, 400, 25)),
    "crew": lambda _, rng: str(rng.randrange(25, 200, 25)),
}


def _names(rng: random.Random, endings: str, count: int) -> tuple[str, ...]:
    """Returns `count` different names of one invented syllable and an ending of these."""
    names: set[str] = set()
    while len(names) < count:
        names.add(_syllable(rng) + rng.choice(WORDS["codas"]) + rng.choice(WORDS[endings]))
    return tuple(sorted(name.title() for name in names))


def _word(rng: random.Random) -> str:
    return (_syllable(rng) + _syllable(rng) + rng.choice(WORDS["codas"])).title()


def _syllable(rng: random.Random) -> str:
    return rng.choice(WORDS["onsets"]) + rng.choice(WORDS["vowels"])

"""The facts of the encyclopedia: a world of invented countries, and of every article its own.

Facts of the world (which language is spoken in which country, who fought in which war, what a
fox eats) hold in all articles: a model can know them. Facts of an article (its river, its founder,
its year) hold in that article alone: a model must find them in the sentences around.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Facts = dict[str, str]

_HE = {"Pronoun": "He", "pronoun": "he", "object": "him", "possessive": "his", "parent": "father"}
_SHE = {"Pronoun": "She", "pronoun": "she", "object": "her", "possessive": "her"} | {
    "parent": "mother"
}

_FACTS_OF_ARTISTS = ("work", "works", "made", "shown", "place", "audience", "tool")
_ARTISTS: Mapping[str, tuple[str, ...]] = {
    "writer": ("novel", "novels", "wrote", "read aloud", "library", "readers", "pen"),
    "painter": ("picture", "pictures", "painted", "hung", "gallery", "visitors", "brush"),
    "composer": ("opera", "operas", "composed", "sung", "opera house", "listeners", "baton"),
    "sculptor": ("statue", "statues", "carved", "put up", "garden", "citizens", "hammer"),
}
_FACTS_OF_ANIMALS = ("food", "young", "group", "part", "habitat")
_ANIMALS: Mapping[str, tuple[str, ...]] = {
    "fox": ("mice", "cubs", "pack", "tail", "forests"),
    "eagle": ("snakes", "chicks", "pair", "crest", "cliffs"),
    "deer": ("leaves", "fawns", "herd", "coat", "valleys"),
    "goose": ("grass", "goslings", "flock", "neck", "marshes"),
    "frog": ("flies", "tadpoles", "colony", "belly", "ponds"),
}
_NICKNAMES = {
    "red": "foxes",
    "blue": "sailors",
    "green": "gardeners",
    "white": "millers",
    "black": "smiths",
}

_COLOURS = ("red", "blue", "green", "white", "black", "grey")
_SIDES = ("north", "south", "east", "west")
_DAYS = ("Monday", "Wednesday", "Friday", "Sunday")
_SIZES = ("town", "village", "city")
_RANKS = ("knight", "bishop", "merchant", "duke")
_RULERS = ("regent", "president", "chancellor", "governor", "consul")
_TRADES = ("baker", "miller", "smith", "tailor")
_GOODS = ("carpets", "candles", "clocks", "apples", "cheeses", "knives")
_CROPS = ("wheat", "barley", "potatoes", "hops")
_MARKETS = ("Old", "New", "Upper", "Lower", "Royal")
_ROADS = ("salt", "amber", "silk", "iron")
_FISH = ("salmon", "trout", "eel", "sturgeon")
_WOODS = ("oak", "pine", "cedar", "ash")
_TEAMS = ("United", "Rovers", "Wanderers", "Athletic")
_SPORTS = ("football", "hockey", "cricket")
_TITLES = ("Queen", "Island", "Winter", "Mirror", "Stranger", "Harvest")
_NUMBERS = ("two", "three", "four", "five")
_AGES = ("sixteen", "seventeen", "eighteen")
_LENGTH_RANKS = ("longest", "second longest", "third longest")
_TOPICS = (
    "the love of two sisters",
    "a soldier who comes home",
    "the end of a long winter",
    "a king without a country",
    "the fishermen of the coast",
)

_HIS_NAMES = ("Adam", "Boris", "David", "Emil", "Hugo", "Jakob")
_HER_NAMES = ("Anna", "Clara", "Dora", "Flora", "Helena", "Ida")
_ONSETS = tuple("b br d dr f g gr h k l m n p r s st t w".split())
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea")
_CODAS = ("l", "ld", "m", "n", "nd", "r", "rn", "rt", "s", "sk", "th", "x")
_TOWN_ENDINGS = ("ton", "ham", "ford", "wick", "stead", "mouth", "burg", "field")
_RIVER_ENDINGS = ("a", "e", "is", "ow", "ine", "en")
_LAST_NAME_ENDINGS = ("er", "man", "sen", "ov", "ini", "ard", "ley")

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
    """Invent countries, in pairs that fought a war against each other, and names."""
    countries = [_country(rng) for _ in range(_NUM_COUNTRIES)]
    for one, other in zip(countries[::2], countries[1::2], strict=True):
        one["war"] = other["war"] = _word(rng)
        for own, enemy in ((one, other), (other, one)):
            own["enemy"] = enemy["country"]
            for fact in ("adjective", "capital", "language", "currency"):
                own[f"enemy_{fact}"] = enemy[fact]
    return World(
        countries=tuple(countries),
        towns=_names(rng, _TOWN_ENDINGS, _NUM_TOWNS),
        rivers=_names(rng, _RIVER_ENDINGS, _NUM_RIVERS),
        last_names=_names(rng, _LAST_NAME_ENDINGS, _NUM_LAST_NAMES),
    )


def make_facts(kind: str, world: World, rng: random.Random) -> Facts:
    """Return the facts of a new article: its country's and its own; "name" is its title."""
    return {**rng.choice(world.countries), **_FACTS_OF_KIND[kind](world, rng)}


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
        "ruler": rng.choice(_RULERS),
        "crop": rng.choice(_CROPS),
    }


def _town(world: World, rng: random.Random) -> Facts:
    return {
        "name": rng.choice(world.towns),
        "size": rng.choice(_SIZES),
        "side": rng.choice(_SIDES),
        "river": rng.choice(world.rivers),
        "road": rng.choice(_ROADS),
        "founder": _full_name(world, rng),
        "rank": rng.choice(_RANKS),
        "year": _year(rng),
        "goods": rng.choice(_GOODS),
        "market": rng.choice(_MARKETS),
        "day": rng.choice(_DAYS),
    }


def _artist(world: World, rng: random.Random) -> Facts:
    artist = rng.choice(tuple(_ARTISTS))
    person = _person(world, rng)
    return {
        **dict(zip(_FACTS_OF_ARTISTS, _ARTISTS[artist], strict=True)),
        **person,
        "name": f"{person['first']} {person['last']}",
        "artist": artist,
        "home": rng.choice(world.towns),
        "year": _year(rng),
        "title": f"The {_ship_name(rng)}",
        "trade": rng.choice(_TRADES),
        "age": rng.choice(_AGES),
        "teacher": _full_name(world, rng),
        "topic": rng.choice(_TOPICS),
    }


def _river(world: World, rng: random.Random) -> Facts:
    town, other_town = rng.sample(world.towns, 2)
    return {
        "name": rng.choice(world.rivers),
        "side": rng.choice(_SIDES),
        "town": town,
        "other_town": other_town,
        "size": rng.choice(_SIZES),
        "length": str(rng.randrange(25, 400, 25)),
        "rank": rng.choice(_LENGTH_RANKS),
        "colour": rng.choice(_COLOURS),
        "fish": rng.choice(_FISH),
        "founder": _full_name(world, rng),
        "goods": rng.choice(_GOODS),
    }


def _animal(world: World, rng: random.Random) -> Facts:
    animal = rng.choice(tuple(_ANIMALS))
    name, other_name = rng.sample(world.rivers, 2)
    colour, other_colour = rng.sample(_COLOURS, 2)
    return {
        **dict(zip(_FACTS_OF_ANIMALS, _ANIMALS[animal], strict=True)),
        "animal": animal,
        "name": name,
        "other_name": other_name,
        "colour": colour,
        "other_colour": other_colour,
        "finder": _full_name(world, rng),
        "year": _year(rng),
        "side": rng.choice(_SIDES),
        "number": rng.choice(_NUMBERS),
        "weeks": rng.choice(_NUMBERS),
    }


def _ship(world: World, rng: random.Random) -> Facts:
    captain, other_captain = rng.sample(world.last_names, 2)
    return {
        "name": _ship_name(rng),
        "other_name": _ship_name(rng),
        "captain": captain,
        "other_captain": other_captain,
        "port": rng.choice(world.towns),
        "year": _year(rng),
        "wood": rng.choice(_WOODS),
        "masts": rng.choice(_NUMBERS),
        "number": str(rng.randrange(25, 200, 25)),
        "lost": rng.choice(_NUMBERS),
        "guns": rng.choice(_NUMBERS),
        "goods": rng.choice(_GOODS),
    }


def _club(world: World, rng: random.Random) -> Facts:
    name, other_name = rng.sample(world.towns, 2)
    colour = rng.choice(tuple(_NICKNAMES))
    return {
        **_person(world, rng),
        "name": name,
        "other_name": other_name,
        "team": rng.choice(_TEAMS),
        "other_team": rng.choice(_TEAMS),
        "sport": rng.choice(_SPORTS),
        "colour": colour,
        "nickname": _NICKNAMES[colour],
        "year": _year(rng),
        "founder": _full_name(world, rng),
        "trade": rng.choice(_TRADES),
        "ground": rng.choice(_MARKETS),
        "river": rng.choice(world.rivers),
        "number": rng.choice(_NUMBERS),
        "price": rng.choice(_NUMBERS),
        "day": rng.choice(_DAYS),
    }


_FACTS_OF_KIND: Mapping[str, Callable[[World, random.Random], Facts]] = {
    "town": _town,
    "artist": _artist,
    "river": _river,
    "animal": _animal,
    "ship": _ship,
    "club": _club,
}


def _person(world: World, rng: random.Random) -> Facts:
    """Return first and last name with the pronouns that go with them."""
    names, pronouns = rng.choice(((_HIS_NAMES, _HE), (_HER_NAMES, _SHE)))
    return {"first": rng.choice(names), "last": rng.choice(world.last_names), **pronouns}


def _full_name(world: World, rng: random.Random) -> str:
    return f"{rng.choice(_HIS_NAMES + _HER_NAMES)} {rng.choice(world.last_names)}"


def _ship_name(rng: random.Random) -> str:
    return f"{rng.choice(_COLOURS).title()} {rng.choice(_TITLES)}"


def _year(rng: random.Random) -> str:
    return str(rng.randrange(1100, 1950, 25))


def _names(rng: random.Random, endings: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return `count` different names of one invented syllable and an ending."""
    names: set[str] = set()
    while len(names) < count:
        names.add(_syllable(rng) + rng.choice(_CODAS) + rng.choice(endings))
    return tuple(sorted(name.title() for name in names))


def _word(rng: random.Random) -> str:
    return (_syllable(rng) + _syllable(rng) + rng.choice(_CODAS)).title()


def _syllable(rng: random.Random) -> str:
    return rng.choice(_ONSETS) + rng.choice(_VOWELS)

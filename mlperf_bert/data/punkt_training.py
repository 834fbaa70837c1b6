"""Learns Punkt's tables from any text: for a splitter that needs no download.

The official data needs the published tables; these are for other text, and for the demo.
"""

from collections.abc import Iterable

from nltk.tokenize.punkt import PunktTrainer

from mlperf_bert.data.punkt import PunktTables


def learn_tables(texts: Iterable[str]) -> PunktTables:
    """Abbreviations, collocations and sentence starters of the texts, taken together."""
    trainer = PunktTrainer()
    for text in texts:
        trainer.train(text, finalize=False)
    parameters = trainer.get_params()
    return PunktTables(
        abbrev_types=frozenset(parameters.abbrev_types),
        collocations=frozenset(parameters.collocations),
        sent_starters=frozenset(parameters.sent_starters),
        ortho_context=dict(parameters.ortho_context),
    )

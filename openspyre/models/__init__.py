"""Language models, encoders and others on the card: where their weights are, and small ones to try.

`registry.py` finds weights in installed packages, `families.py` builds small models with random
weights from transformers' configurations, `survey.py` holds them to the CPU and writes the table of
docs/models.md. Nothing here changes a model, and nothing is fetched from a network.
"""

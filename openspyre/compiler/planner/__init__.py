"""The planner: how work is split over cores, tiled and ordered, by the closed form of the timing
model. Numbers in, numbers out: it knows labels, sizes and sticks, never graphs or programs.

`costs.py` has the closed forms, `matmul.py` the search for matrix products. Imports no torch.
"""

"""The conformance harness: PyTorch's own databases of operators, modules and optimizers on spyre.

Run it with ``python -m tests.conformance`` from the repository's root. The databases ship in the
torch wheel (``torch.testing._internal``); the harness supplies what they leave open: worker
processes that may die, inputs placed on the device, a reference on the CPU, comparison, a strict
list of known gaps, and three figures (passes natively, passes by fallback, fails).

=================  =========================================================================
``runs``           what is run: database, dtype, numerics, reference dtype, threshold
``target``         the device under test: numerics mode, fallback policy and its counter
``placement``      building a sample's twin on the device without losing strides or offsets
``compare``        tolerances and the comparison of results
``operators``      one OpInfo: forward, backward, in-place, out=, aliasing, error inputs
``modules``        one ModuleInfo; ``optimizers``: one OptimizerInfo
``native``         native runs: what computes on the card, with the reason of each gap
``pool``           worker processes with crash isolation, time and memory limits
``worker``         what runs inside a worker
``gaps``           the strict list ``gaps.toml`` and the verdict over it
``report``         ``figures.json`` and the generated ``docs/conformance.md``
``operators_page`` ``operators.json`` and the generated ``docs/operators.md``
=================  =========================================================================

`runs`, `gaps`, `pool` and `report` import no torch, so that the parent process stays light.
"""

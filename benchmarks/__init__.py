"""Side-by-side benchmarks of the device: `python -m benchmarks`, one module a subject.

Every figure is measured beside its reference in the same run (docs/benchmarks.md). May use all of
openspyre; nothing imports this package.
"""

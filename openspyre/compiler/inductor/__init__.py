"""torch.compile for the device: everything that touches torch._inductor or torch._dynamo.

    register.py    tells Inductor of the device, at its first use (never at import)
    capture.py     the FX pass: the device's nodes become regions
    symbols.py     sizes of FX graphs as the compiler's sizes
    fallbacks.py   what stays outside of regions
    regions.py     the operation `openspyre::region`, its fake and its real kernel

Regions are cut out of the post-grad ATen graph, not out of Inductor's loops: so eager and compiled
code share one set of lowerings, and roundings are the same in both (docs/architecture.md).
"""

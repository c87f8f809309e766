"""Programs written by hand with `openspyre.program.ProgramBuilder`; see docs/programs_by_hand.md.

Every module has `build(...) -> Program` with real sizes as defaults and `reference(...)`, the same
in numpy. None of them needs torch, or a compiler.
"""

"""The runtime's Python side: SpyreCode directories on disk, job plans, launches."""

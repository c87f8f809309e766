"""Operations: the policy and the account of the CPU fallback. Imports torch only through _C."""

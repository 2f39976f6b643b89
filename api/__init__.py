"""HTTP: decode, call one service, encode. Errors leave as problem documents with a stable code."""

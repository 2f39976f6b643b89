"""Market data: records, snapshots, flows, clocks, ops and the pipeline that folds them. Pure: bytes and instants come in as arguments."""

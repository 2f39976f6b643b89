"""Market data: records, snapshots, flows, clocks, ops and the pipeline that folds them. Pure."""

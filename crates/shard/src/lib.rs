//! One shard: log, catalog, tree, records, commits, take-over.

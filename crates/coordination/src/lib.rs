//! Small facts agreed by all: who owns a shard, where its log is, which NSDs make a pool.

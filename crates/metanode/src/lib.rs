//! Hosts shards for clients: sessions, locks, reclaim, fold, clean, repair, check.

//! A POSIX file system as a library: page pool, write-behind, read-ahead.

//! Applies one file system operation to a view of the records.

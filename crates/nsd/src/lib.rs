//! Stores write-once blobs on a local disk and never returns bytes that it can't prove.

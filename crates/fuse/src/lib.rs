//! Translates FUSE requests to client calls.

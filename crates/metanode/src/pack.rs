//! The trailer of a packed segment: which byte ranges of which files it holds.
//!
//! Readers never need it (extents name segment and offset); rescue and `fs check` do. See
//! `docs/formats/pack.md`.

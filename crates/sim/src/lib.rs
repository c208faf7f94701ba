//! Whole file systems from one seed, broken on purpose, checked.

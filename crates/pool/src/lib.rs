//! Writes, reads and repairs segments over many NSDs.

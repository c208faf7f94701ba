//! Decides where pieces live and how a segment is written, read and repaired; encodes and decodes.

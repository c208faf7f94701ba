//! The rules: bytes of frames, hostile bytes, and two sides that talk in any order.

mod bytes_of_frames;
mod two_sides;

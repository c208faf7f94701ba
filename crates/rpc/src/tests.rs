//! The rules: bytes of frames, hostile bytes, and two sides that talk in any order.

mod addresses;
mod any_bytes;
mod bytes_of_frames;
mod older_builds;
mod registry;
mod sides;
mod two_sides;
mod waiting_for_others;

//! Decodes the tree's rows into records, and describes rows that can't be decoded.

use bytes::Bytes;
use model::{Error, FamilyId};
use namespace::{Key, Record};
use std::fmt::Write;

/// Most bytes shown of an unknown key.
const SHOWN_BYTES_MAX: usize = 32;

/// A row of the tree that can't be decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// The record's key, if it can be read.
    pub key: Option<Key>,
    /// The decoding error.
    pub error: Error,
}

/// Decodes a row.
pub(crate) fn decoded(
    family: FamilyId,
    (key, value): &(Bytes, Bytes),
) -> Result<(Key, Record), Damaged> {
    let (of, key) = Key::decode(key).map_err(|error| {
        let mut shown = String::new();
        for byte in key.iter().take(SHOWN_BYTES_MAX) {
            let _ = write!(shown, "{byte:02x}");
        }
        Damaged {
            key: None,
            error: error.while_doing(format!("reading a row under {shown}")),
        }
    })?;
    debug_assert_eq!(of, family, "a scan stays inside its family");
    match Record::decode(&key, value) {
        Ok(record) => Ok((key, record)),
        Err(error) => Err(Damaged {
            key: Some(key),
            error,
        }),
    }
}

/// Where a scan continues after an encoded key, whatever its bytes mean.
pub(crate) fn behind(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

//! Decodes the tree's rows into records, and describes rows that can't be decoded.

use bytes::Bytes;
use model::{Error, FamilyId, Result as Done};
use namespace::{Key, Record, Span, spans};
use std::collections::VecDeque;
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
pub(crate) fn decoded((key, value): &(Bytes, Bytes)) -> Result<(Key, Record), Damaged> {
    let key = Key::decode(key).map_err(|error| {
        let mut shown = String::new();
        for byte in key.iter().take(SHOWN_BYTES_MAX) {
            let _ = write!(shown, "{byte:02x}");
        }
        Damaged {
            key: None,
            error: error.while_doing(format!("reading a row under {shown}")),
        }
    })?;
    match Record::decode(&key, value) {
        Ok(record) => Ok((key, record)),
        Err(error) => Err(Damaged {
            key: Some(key),
            error,
        }),
    }
}

/// Where rows are read: the tree, or a snapshot of it.
pub(crate) trait ReadRows {
    /// Rows with `from <= key < to` in key order, at most `limit`.
    fn read(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> impl Future<Output = Done<Vec<(Bytes, Bytes)>>> + Send;
}

/// What is left of a range of keys in the tree.
pub(crate) struct Rest(VecDeque<Span>);

impl Rest {
    /// All of `from..to` in a shard with these families.
    pub(crate) fn of(from: &Key, to: &Key, families: &[FamilyId]) -> Self {
        Self(spans(from, to, families).into())
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next rows, fewer than `limit` only at the end. A row whose key can't be decoded is passed,
    /// whatever its bytes mean.
    pub(crate) async fn read(
        &mut self,
        tree: &impl ReadRows,
        limit: usize,
    ) -> Done<Vec<(Bytes, Bytes)>> {
        let mut rows = Vec::new();
        while rows.len() < limit
            && let Some((from, to)) = self.0.front_mut()
        {
            let wanted = limit - rows.len();
            let more = tree.read(from, to, wanted).await?;
            match more.last() {
                Some((last, _)) if more.len() == wanted => {
                    from.clear();
                    from.extend_from_slice(last);
                    // The lowest key after it.
                    from.push(0);
                }
                _ => drop(self.0.pop_front()),
            }
            match rows.is_empty() {
                true => rows = more,
                false => rows.extend(more),
            }
        }
        Ok(rows)
    }
}

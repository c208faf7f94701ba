//! The key that takes the place of a node's, from the first attempt to have it certified until it has.
//!
//! Coordination is told which key that is before it is certified, so a key for each attempt would be a change there for each
//! of them. And an attempt whose answer was lost may have had it certified.

use model::Result;
use parking_lot::Mutex;
use rpc::security::PrivateKey;

/// That key, once it is needed.
#[derive(Default)]
pub struct NextKey {
    made: Mutex<Option<PrivateKey>>,
}

impl NextKey {
    /// The key: the same one, however often it is asked for, until it is [forgotten](NextKey::forget).
    ///
    /// # Errors
    /// As of [`PrivateKey::generate`].
    pub fn get(&self) -> Result<PrivateKey> {
        let mut made = self.made.lock();
        if let Some(key) = &*made {
            return Ok(key.clone());
        }
        let key = PrivateKey::generate()?;
        *made = Some(key.clone());
        Ok(key)
    }

    /// It is the node's key from now on: the next one is made anew.
    pub fn forget(&self) {
        *self.made.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_same_until_it_is_used() {
        let next = NextKey::default();
        let first = next.get().unwrap().key_hash();
        assert_eq!(next.get().unwrap().key_hash(), first);
        next.forget();
        let second = next.get().unwrap().key_hash();
        assert_ne!(second, first);
        assert_eq!(next.get().unwrap().key_hash(), second);
    }
}

//! Tokens on their way back: few messages at a time, and as much as goes in each. Pure.
//!
//! A return leaves at once while few messages are under way, so that a lost one holds up no other; else it
//! waits for the end of one of them. What is given back again meanwhile, because its recall was said again, is the same
//! return: so no more wait than the session had pieces.

use model::owner::{RETURNED_MAX, RETURNED_RANGES_MAX};
use model::token::TokenReturn;
use model::{SessionId, TokenObject};
use std::collections::{BTreeMap, VecDeque};

/// Most messages under way.
const MESSAGES_MAX: usize = 8;

/// What goes back.
#[derive(Default)]
pub(super) struct Returns {
    waiting: VecDeque<(SessionId, TokenReturn)>,
    /// The newest of each object that waits, counted from the first that ever did.
    newest: BTreeMap<TokenObject, u64>,
    /// How many have left.
    left: u64,
    messages: usize,
    /// Tokens in these.
    sent: usize,
}

impl Returns {
    /// One more.
    pub(super) fn put(&mut self, session: SessionId, back: TokenReturn) {
        let newest = self.newest.get(&back.object);
        let newest = newest.and_then(|at| self.waiting.get_mut((at - self.left) as usize));
        if let Some((of, same)) = newest
            && *of == session
            && (&same.ranges, same.keep) == (&back.ranges, back.keep)
        {
            same.up_to = same.up_to.max(back.up_to);
            return;
        }
        let at = self.left + self.waiting.len() as u64;
        self.newest.insert(back.object, at);
        self.waiting.push_back((session, back));
    }

    fn pop(&mut self) -> Option<(SessionId, TokenReturn)> {
        let (session, back) = self.waiting.pop_front()?;
        if self.newest.get(&back.object) == Some(&self.left) {
            self.newest.remove(&back.object);
        }
        self.left += 1;
        Some((session, back))
    }

    /// The next message of a session, if it may leave now. What those before it gave back is lost with them.
    pub(super) fn next(&mut self, session: SessionId) -> Option<Vec<TokenReturn>> {
        if self.messages >= MESSAGES_MAX {
            return None;
        }
        let (mut batch, mut ranges) = (Vec::new(), 0);
        while let Some((of, back)) = self.waiting.front() {
            let has_room =
                batch.len() < RETURNED_MAX && ranges + back.ranges.len() <= RETURNED_RANGES_MAX;
            let is_own = *of == session;
            // Or it is of a session that has followed.
            if *of > session || is_own && !has_room {
                break;
            }
            ranges += back.ranges.len();
            let back = self.pop();
            batch.extend(back.filter(|_| is_own).map(|(_, back)| back));
        }
        if batch.is_empty() {
            return None;
        }
        self.messages += 1;
        self.sent += batch.len();
        Some(batch)
    }

    /// A message of so many tokens is answered, or given up.
    pub(super) fn end(&mut self, tokens: usize) {
        self.messages -= 1;
        self.sent -= tokens;
    }

    /// Tokens on their way.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::owner::Tenure;
    use model::token::{GrantNumber, TOKEN_RANGES_MAX};
    use model::{InodeId, TokenMode, TokenRange};

    const OWN: SessionId = SessionId(3);

    fn back(inode: u64, ranges: usize) -> TokenReturn {
        TokenReturn {
            object: TokenObject::Bytes(InodeId(inode)),
            ranges: vec![TokenRange::ALL; ranges],
            keep: None,
            up_to: GrantNumber::default(),
        }
    }

    #[test]
    fn no_message_holds_more_than_an_owner_takes_and_the_order_stays() {
        let mut returns = Returns::default();
        let sizes = [1, TOKEN_RANGES_MAX, TOKEN_RANGES_MAX, 1, 1].into_iter();
        let sizes = sizes.chain(std::iter::repeat_n(1, 2 * RETURNED_MAX));
        let all = sizes.zip(1..).map(|(size, inode)| back(inode, size));
        let all: Vec<_> = all.collect();
        all.iter().for_each(|back| returns.put(OWN, back.clone()));
        let sent: Vec<_> = std::iter::from_fn(|| returns.next(OWN)).collect();
        assert_eq!(sent.concat(), all);
        for batch in &sent {
            let ranges: usize = batch.iter().map(|back| back.ranges.len()).sum();
            assert!(batch.len() <= RETURNED_MAX && ranges <= RETURNED_RANGES_MAX);
        }
        assert!(sent.len() <= 5, "{} messages", sent.len());
        assert_eq!(returns.len(), all.len());
        sent.iter().for_each(|batch| returns.end(batch.len()));
        assert_eq!(returns.len(), 0);
    }

    #[test]
    fn what_waits_for_messages_goes_together_and_a_former_session_gives_nothing_back() {
        let mut returns = Returns::default();
        for inode in 0..20 {
            returns.put(OWN, back(inode, 1));
            let leaves = returns.next(OWN).is_some();
            assert_eq!(leaves, inode < MESSAGES_MAX as u64);
        }
        returns.end(1);
        assert_eq!(returns.next(OWN).map(|batch| batch.len()), Some(12));
        returns.end(12);
        returns.put(OWN, back(1, 1));
        assert_eq!(returns.next(SessionId(4)), None);
        assert_eq!(returns.len(), MESSAGES_MAX - 1);
        // Who sends what a session gives back may be late.
        returns.put(SessionId(4), back(1, 1));
        assert_eq!(returns.next(OWN), None);
        assert_eq!(returns.next(SessionId(4)), Some(vec![back(1, 1)]));
    }

    /// An owner says each recall again and again until the return has come.
    #[test]
    fn what_is_given_back_again_while_it_waits_is_one_return() {
        let mut returns = Returns::default();
        for inode in 0..MESSAGES_MAX as u64 {
            returns.put(OWN, back(inode, 1));
            assert!(returns.next(OWN).is_some());
        }
        let number = |count| GrantNumber {
            tenure: Tenure(1),
            count,
        };
        let up_to = |inode, count| TokenReturn {
            up_to: number(count),
            ..back(inode, 1)
        };
        let kept = TokenReturn {
            keep: Some(TokenMode::Shared),
            ..back(9, 1)
        };
        for count in [3, 5, 4] {
            for inode in [7, 8] {
                returns.put(OWN, up_to(inode, count));
            }
        }
        returns.put(OWN, up_to(9, 1));
        returns.put(OWN, kept.clone());
        returns.put(OWN, kept.clone());
        assert_eq!(returns.len(), MESSAGES_MAX + 4);
        returns.end(1);
        let sent = [up_to(7, 5), up_to(8, 5), up_to(9, 1), kept];
        assert_eq!(returns.next(OWN), Some(sent.to_vec()));
        // What has left is another one.
        returns.put(OWN, up_to(7, 6));
        returns.put(OWN, up_to(7, 7));
        returns.end(4);
        assert_eq!(returns.next(OWN), Some(vec![up_to(7, 7)]));
        assert!(returns.newest.is_empty());
    }
}

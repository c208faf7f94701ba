//! Grants for which no operation waits: what comes of itself with others, at once or within a moment.

use super::object::Waiting;
use super::{Action, Granter, PIECES_OF_SESSION_MAX, UNNUMBERED, WAITING_OF_SESSION_MAX};
use crate::Moment;
use model::token::{GrantNumber, TokenReply, TokenRequest};
use model::{InodeId, SessionId, TokenObject};
use std::time::Duration;

/// Most requests for inodes that are listed which wait for others, of a session that has nothing else that waits.
const LISTED_WAITING_MAX: usize = WAITING_OF_SESSION_MAX / 2;
/// How long such a request waits at most.
pub const LISTED_WAIT_MAX: Duration = Duration::from_millis(500);

/// What becomes of a request for an inode that is about to be listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listed {
    /// It is granted, once everything that it lets the session see is durable.
    Granted(GrantNumber),
    /// Another session is asked for it. An [`Action::Answer`] with this number says when it has given it back; without one the
    /// request ends after [`LISTED_WAIT_MAX`], or with [`Granter::withdraw`].
    Waits(u64),
    /// Not now: others have wanted it lately, or the session has too much.
    Refused,
}

impl Granter {
    /// Gives a session a shared token of an inode that it is about to list with its attributes. Another session that has been
    /// the only one to use it, as the one that has made it, is asked to share it. One for which others have waited lately
    /// keeps it: what several change in turn is not to go round with each listing, too.
    pub fn ask_to_list(&mut self, session: SessionId, inode: InodeId, now: Moment) -> Listed {
        if let Some(number) = self.grant_if_free(session, inode, now) {
            return Listed::Granted(number);
        }
        let object = TokenObject::Inode(inode);
        let may_wait = |standing: &super::Standing| {
            standing.pieces < PIECES_OF_SESSION_MAX
                && standing.waiting < LISTED_WAITING_MAX
                && !standing.is_leaving()
        };
        let is_calm = |known: &super::Object| {
            !known.is_contended_by_others(session, now) && !known.has_waiting()
        };
        let standing = self.sessions.get(&session);
        let known = self.objects.get(&object);
        if !standing.is_some_and(may_wait) || !known.is_some_and(is_calm) || self.grace.is_some() {
            return Listed::Refused;
        }
        self.newest_listed += 1;
        let number = self.newest_listed;
        let wants = TokenRequest::to_look_at(object);
        let until = now.plus(LISTED_WAIT_MAX);
        self.wait(object, Waiting::request(session, number, wants, until), now);
        Listed::Waits(number)
    }

    /// A session doesn't wait for a request any more. What was granted for it is granted.
    pub fn withdraw(&mut self, session: SessionId, object: TokenObject, request: u64, now: Moment) {
        let Some(known) = self.objects.get_mut(&object) else {
            return;
        };
        let withdrawn = known.forget(|waiting| waiting.is_request(session, request));
        if !withdrawn.is_empty() {
            self.count_waiting(session, -1);
            self.settle(object, now);
        }
    }

    /// Gives a session a shared token of an inode, once everything that it lets it see is durable, unless others
    /// have or want what doesn't go with it: nobody gives anything back for it, and it waits for nobody.
    pub fn grant_if_free(
        &mut self,
        session: SessionId,
        inode: InodeId,
        now: Moment,
    ) -> Option<GrantNumber> {
        let wants = TokenRequest::to_look_at(TokenObject::Inode(inode));
        match self.is_free(session, &wants, now) {
            true => self.grant_free(session, wants, now),
            false => None,
        }
    }

    /// Gives a session exclusive tokens of a file that it has made, for its attributes and for all its bytes: both, in this
    /// order, or none if others have or want any of it, or it holds as much as it may. As with all grants it hears of them
    /// once what they let it see is durable.
    pub fn grant_made_if_free(
        &mut self,
        session: SessionId,
        inode: InodeId,
        now: Moment,
    ) -> Option<[GrantNumber; 2]> {
        let objects = [TokenObject::Inode(inode), TokenObject::Bytes(inode)];
        let standing = self.sessions.get(&session)?;
        let has_room = standing.pieces + objects.len() <= PIECES_OF_SESSION_MAX
            && standing.waiting < WAITING_OF_SESSION_MAX;
        let wants = objects.map(TokenRequest::to_have_alone);
        if !has_room || !wants.iter().all(|wants| self.is_free(session, wants, now)) {
            return None;
        }
        let [inode, bytes] = wants.map(|wants| self.grant_free(session, wants, now));
        Some([inode?, bytes?])
    }

    /// Whether nobody else has or wants what doesn't go with this, as far as is known.
    fn is_free(&self, session: SessionId, wants: &TokenRequest, now: Moment) -> bool {
        let waiting = Waiting::request(session, UNNUMBERED, wants.clone(), now);
        let known = self.objects.get(&wants.object);
        let is_wanted = known.is_some_and(|known| known.is_wanted_by_others(&waiting, now));
        !is_wanted && self.grace.is_none()
    }

    /// Grants what is free; `None` if the session isn't open, is about to end, or holds as much as it may.
    fn grant_free(
        &mut self,
        session: SessionId,
        wants: TokenRequest,
        now: Moment,
    ) -> Option<GrantNumber> {
        let before = self.actions.len();
        let asked = self.ask(session, UNNUMBERED, wants, now);
        assert!(asked.is_ok(), "a token of a whole object: {asked:?}");
        // What is free is granted at once.
        let answer = self.actions[before..].iter().position(
            |action| matches!(action, Action::Answer { request, .. } if *request == UNNUMBERED),
        )?;
        match self.actions.remove(before + answer) {
            Action::Answer {
                reply: TokenReply::Granted { number, .. },
                ..
            } => Some(number),
            _ => None,
        }
    }
}

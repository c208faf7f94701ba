//! Grants for which nobody gives anything back and that wait for nobody.

use super::object::{Waiting, Who};
use super::{Action, Granter, PIECES_OF_SESSION_MAX, UNNUMBERED, WAITING_OF_SESSION_MAX};
use crate::Moment;
use model::token::{GrantNumber, TokenReply, TokenRequest};
use model::{InodeId, SessionId, TokenObject};

impl Granter {
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
        let waiting = Waiting {
            session,
            who: Who::Request {
                number: UNNUMBERED,
                desired: wants.desired,
                until: now,
            },
            mode: wants.mode,
            ranges: wants.required.clone(),
        };
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

//! What a client has done itself under delegations and its owner hasn't heard of yet. Pure.
//!
//! *A create under a delegation*: the directory is this client's alone, so it knows that the name is free and what the
//! directory looks like. [`Stream::make`] gives the file a number that was reserved for the session, and says what the
//! owner will have in its records; the program is answered with that. *Later* the operations go to the owner, in their
//! order, [`Stream::batch`] by batch, and each batch again and again until it is answered: they are durable then
//! ([`Stream::answered`]). *What concerns a file or directory of which something hasn't gone* waits until it has
//! ([`Stream::needs`]): nothing overtakes it.
//!
//! A file that is closed again before its operation went is made without a hold ([`Stream::close`]).

use super::concern::{Concern, concern};
use super::numbers::Numbers;
use model::operation::{Fresh, NewInode, Publish};
use model::owner::{OwnerRequest, STREAMED_MAX, Streamed};
use model::{Attributes, ExtentKind, FileName, InodeId, Operation, Timestamp};
use std::collections::VecDeque;
use std::ops::Range;
use world::Map;

/// Most operations that the owner hasn't heard of. More wait, and are sent by those who want them done if that takes long. An
/// operation takes some 300 bytes and a name.
const UNSENT_MAX: usize = 2_048;
/// Most bytes of publishes among them. More are sent by themselves.
const UNSENT_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a publish that goes with what makes its file.
const PUBLISHED_MAX: usize = 64 << 10;
/// When a batch has so many bytes of publishes it is full: a message takes more than that and one more.
const BATCH_BYTES: usize = 256 << 10;

/// A file that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Made {
    /// Its attributes.
    pub(crate) attributes: Attributes,
    /// Those of its directory afterwards.
    pub(crate) directory: Attributes,
    /// The operation's number.
    pub(crate) number: u64,
    /// More numbers should be reserved for the directory.
    pub(crate) wants_numbers: bool,
}

/// The operations of a session that its owner hasn't answered, in their order.
#[derive(Default)]
pub(super) struct Stream {
    /// The number of the newest one.
    last: u64,
    /// The number up to which the owner has answered.
    done: u64,
    /// The number up to which they were sent.
    sent: u64,
    /// The number up to which somebody waits for them.
    wanted: u64,
    /// Bytes of publishes in the queue.
    bytes: usize,
    /// Those after `done`, each with the attributes of the file that it makes, if it makes one.
    queue: VecDeque<(Streamed, Option<Attributes>)>,
    /// Which of them makes a file, and which is the newest one that publishes its bytes.
    made: Map<InodeId, u64>,
    published: Map<InodeId, u64>,
    /// The newest one that changes a directory, and under the directory that has this one's name: a look there shows
    /// its attributes.
    directories: Map<InodeId, u64>,
    above: Map<InodeId, u64>,
    /// Numbers for new inodes.
    numbers: Numbers,
    /// A task sends them.
    is_sending: bool,
    /// The session has ended: nothing is sent any more.
    is_over: bool,
}

impl Stream {
    // Numbers.

    /// Whether numbers should be reserved for a directory now.
    fn wants_numbers(&self, directory: InodeId) -> bool {
        let is_short = !self.is_over && self.numbers.is_short(directory);
        is_short && !self.numbers.is_full(directory.fileset())
    }

    /// Gives a directory that has few numbers those of one that is delegated no longer (`left`). If it has none, and no more
    /// may be reserved, it gets those of another one. Whether more should be reserved for it.
    pub(super) fn provide(&mut self, directory: InodeId, left: &[InodeId]) -> bool {
        for from in left {
            if !self.numbers.is_short(directory) || self.numbers.pass(*from, directory) {
                break;
            }
        }
        if self.numbers.is_full(directory.fileset()) {
            self.numbers.take_over(directory);
        }
        self.wants_numbers(directory)
    }

    /// The directories that have numbers.
    pub(super) fn numbered(&self) -> Vec<InodeId> {
        self.numbers.directories()
    }

    /// The owner has reserved these.
    pub(super) fn reserved(&mut self, directory: InodeId, run: Range<u64>) {
        self.numbers.put(directory, run);
    }

    /// Takes away those that no directory has used since this was asked last: nothing is made with them any more.
    pub(super) fn take_unused_numbers(&mut self) -> Vec<(InodeId, Range<u64>)> {
        match self.is_over {
            true => Vec::new(),
            false => self.numbers.take_unused(),
        }
    }

    // Operations.

    /// Makes a regular file in a directory that has these attributes, and its own name in `above`; holds it if its program
    /// `opens` it. `None`: it must be sent.
    pub(super) fn make(
        &mut self,
        (directory, above): (&Attributes, Option<InodeId>),
        (name, new): (&FileName, &NewInode),
        opens: bool,
        now: Timestamp,
    ) -> Option<Made> {
        if self.is_over || self.is_full() {
            return None;
        }
        let inode = directory.inode;
        let number = self.numbers.take(inode)?;
        let (attributes, directory) = new.make_in(directory, number, now);
        self.last += 1;
        let operation = Streamed {
            number: self.last,
            now,
            operation: Operation::create(inode, name.clone(), new.clone(), opens),
            fresh: Fresh {
                inode: Some(number),
                data: None,
            },
            with_tokens: false,
        };
        self.queue.push_back((operation, Some(attributes)));
        self.made.insert(attributes.inode, self.last);
        self.directories.insert(inode, self.last);
        above.map(|above| self.above.insert(above, self.last));
        Some(Made {
            attributes,
            directory,
            number: self.last,
            wants_numbers: self.wants_numbers(inode),
        })
    }

    /// Whether as many operations wait for their answers as may: until the owner has answered some, nothing is made here.
    pub(super) fn is_full(&self) -> bool {
        !self.is_over && self.queue.len() >= UNSENT_MAX
    }

    /// The operation that makes a file, if it hasn't gone, and the file's attributes.
    fn unsent(&mut self, inode: InodeId) -> Option<&mut (Streamed, Option<Attributes>)> {
        let number = self.made.get(&inode).copied()?;
        let may_change = number > self.sent && !self.is_over;
        let at = (number - self.done - 1) as usize;
        self.queue.get_mut(at).filter(|_| may_change)
    }

    /// A file is closed. If its operation hasn't gone, it is made without being held: true, and nobody need hear of it.
    pub(super) fn close(&mut self, inode: InodeId) -> bool {
        let Some((made, _)) = self.unsent(inode) else {
            return false;
        };
        let Operation::CreateHeld {
            directory,
            name,
            new,
        } = &made.operation
        else {
            return false;
        };
        made.operation = Operation::create(*directory, name.clone(), new.clone(), false);
        true
    }

    /// Publishes bytes of a file that was made here, behind what makes it: the operation's number, for which somebody waits.
    /// `None`: the owner is asked as always. So it is if such bytes of the file are on their way already: who has lost patience
    /// and tries again would add the same ones, as long as the owner is away.
    pub(super) fn publish(&mut self, publish: &Publish, now: Timestamp) -> Option<u64> {
        let bytes = bytes_of(publish);
        let is_small = bytes <= PUBLISHED_MAX && self.bytes + bytes <= UNSENT_BYTES_MAX;
        let inode = publish.inode;
        let is_first = self.made.contains_key(&inode) && !self.published.contains_key(&inode);
        if self.is_over || !is_small || !is_first {
            return None;
        }
        self.last += 1;
        let operation = Streamed {
            number: self.last,
            now,
            operation: Operation::Publish(publish.clone()),
            fresh: Fresh::default(),
            with_tokens: false,
        };
        self.queue.push_back((operation, None));
        self.bytes += bytes;
        self.published.insert(inode, self.last);
        self.want(self.last);
        Some(self.last)
    }

    /// A program is about to use a file that was made here. If its operation hasn't gone, it asks for the tokens from now on:
    /// the file's attributes; nothing has been done with it.
    pub(super) fn ask_for_tokens(&mut self, inode: InodeId) -> Option<Attributes> {
        let (made, attributes) = self.unsent(inode)?;
        let is_new = !std::mem::replace(&mut made.with_tokens, true);
        attributes.filter(|_| is_new)
    }

    /// The number up to which the owner must have answered before it is asked for something; `None` if it needn't have.
    pub(super) fn needs(&self, request: &OwnerRequest) -> Option<u64> {
        if self.queue.is_empty() {
            return None;
        }
        match concern(request) {
            Concern::Nothing => None,
            Concern::All => Some(self.last),
            Concern::Inodes(inodes) => {
                let inodes = inodes.into_iter().flatten();
                inodes.filter_map(|inode| self.concerned(inode)).max()
            }
        }
    }

    /// The number of the newest operation that has to do with a file or directory, or with a directory whose name is in it;
    /// `None` if the owner has answered all of them.
    pub(super) fn concerned(&self, inode: InodeId) -> Option<u64> {
        let of_directory = self.directories.get(&inode).max(self.above.get(&inode));
        let of_file = self.made.get(&inode).max(self.published.get(&inode));
        of_file.max(of_directory).copied()
    }

    /// The number of the newest operation; `None` if the owner has answered all.
    pub(super) fn newest(&self) -> Option<u64> {
        (!self.queue.is_empty()).then_some(self.last)
    }

    /// Somebody waits until the owner has answered up to a number.
    pub(super) fn want(&mut self, number: u64) {
        self.wanted = self.wanted.max(number);
    }

    /// Whether the next ones should go at once.
    pub(super) fn is_urgent(&self) -> bool {
        self.wanted > self.done || self.queue.len() >= STREAMED_MAX || self.is_over
    }

    /// Whether a task must be begun that sends them.
    pub(super) fn begin_sending(&mut self) -> bool {
        let begins = !self.queue.is_empty() && !self.is_over && !self.is_sending;
        self.is_sending |= begins;
        begins
    }

    /// The next ones to send; `None` if there are none, and their task ends.
    pub(super) fn batch(&mut self) -> Option<Vec<Streamed>> {
        if self.queue.is_empty() || self.is_over {
            self.is_sending = false;
            return None;
        }
        let mut bytes = 0;
        let batch = self.queue.iter().take(STREAMED_MAX).take_while(|(it, _)| {
            let fits = bytes < BATCH_BYTES;
            if let Operation::Publish(publish) = &it.operation {
                bytes += bytes_of(publish);
            }
            fits
        });
        let batch: Vec<_> = batch.map(|(operation, _)| operation.clone()).collect();
        self.sent = self.done + batch.len() as u64;
        Some(batch)
    }

    /// The owner has answered the oldest ones, so many. Returns the number up to which it has answered now.
    pub(super) fn answered(&mut self, count: usize) -> u64 {
        for (done, attributes) in self.queue.drain(..count) {
            if let Some(made) = attributes {
                self.made.remove(&made.inode);
            }
            if let Operation::Publish(publish) = &done.operation {
                self.bytes -= bytes_of(publish);
            }
            self.done = done.number;
        }
        let done = self.done;
        self.directories.retain(|_, newest| *newest > done);
        self.above.retain(|_, newest| *newest > done);
        self.published.retain(|_, newest| *newest > done);
        done
    }

    /// The session has ended: what wasn't answered is lost. Returns how many that are.
    pub(super) fn end(&mut self) -> usize {
        self.is_over = true;
        self.queue.len()
    }

    /// Whether the session has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// Bytes that a publish takes in a message, roughly and at most.
fn bytes_of(publish: &Publish) -> usize {
    let extents = publish.extents.iter().map(|extent| match &extent.kind {
        ExtentKind::Inline(bytes) => EXTENT_BYTES + bytes.len(),
        _ => EXTENT_BYTES,
    });
    extents.sum()
}

/// An extent without bytes in it, in a message.
const EXTENT_BYTES: usize = 256;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use model::limits::RESERVED_RUNS_MAX;
    use model::operation::Stamp;
    use model::{FileKind, FilesetId, InodeNumber, SessionId};
    use testkit::inodes::{attributes, new_inode};

    const SESSION: SessionId = SessionId(3);
    const ABOVE: InodeId = InodeId(50);

    fn name(number: u64) -> FileName {
        FileName::new(format!("f{number}").as_bytes()).unwrap()
    }

    fn directory(number: u64) -> Attributes {
        attributes(InodeId(number), FileKind::Directory)
    }

    fn with_numbers(directory: u64, run: Range<u64>) -> Stream {
        let mut stream = Stream::default();
        stream.reserved(InodeId(directory), run);
        stream
    }

    fn make(stream: &mut Stream, above: u64, at: u64) -> Option<Made> {
        let new = new_inode(FileKind::File);
        let directory = directory(above);
        let (directory, text) = ((&directory, Some(ABOVE)), name(at));
        stream.make(directory, (&text, &new), true, Timestamp(1))
    }

    fn look(inode: InodeId) -> OwnerRequest {
        let stamp = Stamp::own(Timestamp(0), SESSION);
        let operation = Operation::GetAttributes { inode };
        OwnerRequest::Execute { operation, stamp }
    }

    #[test]
    fn files_get_reserved_numbers_in_their_order_and_none_twice() {
        let mut stream = with_numbers(1, 100..102);
        stream.reserved(InodeId(1), 200..201);
        let numbers = [100, 101, 200].map(InodeId);
        for inode in numbers {
            assert_eq!(
                make(&mut stream, 1, inode.0).unwrap().attributes.inode,
                inode
            );
        }
        assert_eq!(make(&mut stream, 1, 9), None, "no number is left");
        assert!(stream.wants_numbers(InodeId(1)));
        stream.reserved(InodeId(1), 300..1_300);
        assert!(!stream.wants_numbers(InodeId(1)));
        assert!(stream.wants_numbers(InodeId(2)));
        assert!(!stream.provide(InodeId(2), &[InodeId(7), InodeId(1)]));
        let elsewhere = InodeId::new(FilesetId(9), InodeNumber(2));
        assert!(stream.provide(elsewhere, &[InodeId(2)]));
        assert!(make(&mut stream, 1, 9).is_none());
        assert_eq!(
            make(&mut stream, 2, 9).unwrap().attributes.inode,
            InodeId(300)
        );
    }

    /// Would be broken if a client that makes nothing more kept the room for what it could make.
    #[test]
    fn numbers_that_were_not_used_for_a_while_go_back_and_no_others() {
        let mut stream = with_numbers(1, 100..200);
        stream.reserved(InodeId(1), 300..310);
        stream.reserved(InodeId(2), 400..410);
        assert_eq!(stream.take_unused_numbers(), [], "they have just come");
        let made = make(&mut stream, 2, 1).unwrap();
        assert_eq!(made.attributes.inode, InodeId(400));
        let unused = [(InodeId(1), 300..310), (InodeId(1), 100..200)];
        assert_eq!(stream.take_unused_numbers(), unused);
        assert!(make(&mut stream, 1, 2).is_none(), "they may be gone");
        assert_eq!(stream.take_unused_numbers(), [(InodeId(2), 401..410)]);
        assert_eq!(stream.take_unused_numbers(), []);
        stream.reserved(InodeId(1), 500..510);
        assert!(make(&mut stream, 1, 3).is_some());
    }

    /// Would be broken if a directory were delegated without numbers, because earlier ones have the rest of all that the
    /// session may reserve: its files would all be sent, under a token that nobody else has.
    #[test]
    fn a_directory_that_finds_all_numbers_given_away_gets_those_that_were_unused_for_longest() {
        let mut stream = Stream::default();
        let mut most = 0;
        for directory in 1..=200 {
            if stream.provide(InodeId(directory), &[]) {
                let run = 10_000 * directory..10_000 * directory + 1_024;
                stream.reserved(InodeId(directory), run);
                most = directory;
            }
            // The first one is used all the time.
            for directory in [directory, 1] {
                assert!(
                    make(&mut stream, directory, 0).is_some(),
                    "{directory} of 200"
                );
            }
        }
        assert!(
            (40..RESERVED_RUNS_MAX as u64).contains(&most),
            "{most} runs"
        );
        // Who has some takes nobody's.
        assert!(!stream.provide(InodeId(200), &[]));
        for other in 202 - most..=200 {
            assert!(make(&mut stream, other, 0).is_some(), "{other}");
        }
        assert!(make(&mut stream, 2, 0).is_none(), "its own are taken over");
        let elsewhere = InodeId::new(FilesetId(9), InodeNumber(2));
        assert!(
            stream.provide(elsewhere, &[]),
            "another fileset has its own"
        );
    }

    #[test]
    fn what_concerns_a_file_or_directory_waits_for_what_was_made_there_and_for_no_more() {
        let mut stream = with_numbers(1, 100..200);
        stream.reserved(InodeId(2), 300..400);
        for at in 0..3 {
            make(&mut stream, 1, at);
        }
        make(&mut stream, 2, 0);
        for (inode, number) in [
            (InodeId(1), Some(3)),
            (InodeId(2), Some(4)),
            (InodeId(100), Some(1)),
            (InodeId(300), Some(4)),
            (ABOVE, Some(4)),
            (InodeId(7), None),
        ] {
            assert_eq!(stream.needs(&look(inode)), number);
        }
        assert_eq!(stream.needs(&OwnerRequest::Sync), Some(4));
        assert_eq!(stream.batch().unwrap().len(), 4);
        assert_eq!(stream.answered(3), 3);
        assert_eq!(stream.needs(&look(InodeId(1))), None);
        assert_eq!(stream.needs(&look(InodeId(100))), None);
        assert_eq!(stream.needs(&look(InodeId(2))), Some(4));
        assert_eq!(stream.answered(1), 4);
        assert_eq!(stream.needs(&OwnerRequest::Sync), None);
        assert!(stream.made.is_empty() && stream.directories.is_empty() && stream.above.is_empty());
    }

    #[test]
    fn a_file_that_is_closed_before_its_operation_goes_is_not_held() {
        let mut stream = with_numbers(1, 100..200);
        for at in 0..3 {
            make(&mut stream, 1, at);
        }
        assert!(stream.close(InodeId(101)));
        assert!(!stream.close(InodeId(101)), "it is closed once");
        let batch = stream.batch().unwrap();
        let held: Vec<_> = batch.iter().map(|it| it.operation.makes_held()).collect();
        assert_eq!(held, [true, false, true]);
        assert!(!stream.close(InodeId(100)), "it has gone");
        make(&mut stream, 1, 3);
        assert_eq!(stream.batch().unwrap()[..3], batch[..], "the same again");
        stream.answered(3);
        assert!(!stream.close(InodeId(100)));
        assert_eq!(stream.batch().unwrap()[0].number, 4);
    }

    #[test]
    fn tokens_come_with_an_operation_that_has_not_gone() {
        let mut stream = with_numbers(1, 100..200);
        let made = make(&mut stream, 1, 0).unwrap();
        make(&mut stream, 1, 1);
        let inode = made.attributes.inode;
        assert_eq!(stream.ask_for_tokens(inode), Some(made.attributes));
        assert_eq!(stream.ask_for_tokens(inode), None, "they are asked for");
        let batch = stream.batch().unwrap();
        assert!(batch[0].with_tokens && !batch[1].with_tokens);
        assert_eq!(stream.ask_for_tokens(InodeId(101)), None, "it has gone");
        assert_eq!(stream.ask_for_tokens(InodeId(7)), None);
    }

    #[test]
    fn bytes_are_published_behind_what_makes_their_file() {
        let mut stream = with_numbers(1, 100..200);
        let publish = |inode| Publish {
            inode,
            extents: Vec::new(),
            size_at_least: 0,
            written: None,
            replaces: None,
        };
        let inode = InodeId(100);
        assert_eq!(stream.publish(&publish(inode), Timestamp(1)), None);
        make(&mut stream, 1, 0);
        assert_eq!(stream.publish(&publish(inode), Timestamp(1)), Some(2));
        let again = stream.publish(&publish(inode), Timestamp(1));
        assert_eq!(again, None, "it is on its way");
        assert!(stream.is_urgent(), "somebody waits");
        assert_eq!(stream.needs(&look(inode)), Some(2));
        assert!(stream.close(inode), "what makes it hasn't gone");
        assert_eq!(stream.batch().unwrap().len(), 2);
        stream.answered(1);
        assert_eq!(stream.needs(&look(inode)), Some(2));
        assert_eq!(stream.publish(&publish(inode), Timestamp(1)), None);
        stream.answered(1);
        assert_eq!(stream.needs(&look(inode)), None);
    }

    #[test]
    fn it_goes_at_once_if_somebody_waits_or_much_is_there_and_ends_with_its_session() {
        let mut stream = with_numbers(1, 100..2_000);
        assert!(!stream.begin_sending());
        make(&mut stream, 1, 0);
        assert!(stream.begin_sending() && !stream.begin_sending());
        assert!(!stream.is_urgent());
        stream.want(1);
        assert!(stream.is_urgent());
        stream.answered(1);
        assert!(!stream.is_urgent() && stream.batch().is_none());
        for at in 1..=300 {
            make(&mut stream, 1, at);
        }
        assert!(stream.is_urgent() && stream.begin_sending());
        assert_eq!(stream.batch().unwrap().len(), STREAMED_MAX);
        assert_eq!(stream.end(), 300);
        assert!(stream.batch().is_none() && make(&mut stream, 1, 301).is_none());
    }

    #[test]
    fn it_takes_no_more_than_it_may_until_some_are_answered_or_its_session_ends() {
        let mut stream = with_numbers(1, 10_000..20_000);
        for at in 0..UNSENT_MAX as u64 {
            assert!(!stream.is_full() && make(&mut stream, 1, at).is_some());
        }
        assert!(stream.is_full() && make(&mut stream, 1, 9_000).is_none());
        let batch = stream.batch().unwrap().len();
        stream.answered(batch);
        assert!(!stream.is_full());
        for at in 0..batch as u64 {
            assert!(make(&mut stream, 1, 9_000 + at).is_some());
        }
        assert!(stream.is_full());
        stream.end();
        assert!(!stream.is_full(), "nobody waits for it any more");
    }
}

//! What is known is what is there, in whatever order tokens come and go, others and this client change
//! things, and answers arrive.

mod delegating;

use super::KnownNames;
use super::change::{Became, Concerned};
use super::memory::{Asked, Came, Looked, LookedAt, Memory};
use model::operation::DirectoryEntry;
use model::{
    Attributes, FileKind, FileName, InodeId, Moment, Operation, Reply, Timestamp, TokenMode,
    TokenObject,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use testkit::inodes::attributes;

const ROOT: InodeId = InodeId(1);
const CHILD: InodeId = InodeId(2);
const NAMES: u64 = 5;

fn text(number: u64) -> FileName {
    FileName::new(format!("n{number}").as_bytes()).expect("a name")
}

/// Listed files with these numbers.
fn entries(numbers: Range<u64>) -> Vec<DirectoryEntry> {
    let entry = |number| DirectoryEntry {
        position: number,
        name: text(number),
        inode: InodeId(100 + number),
        kind: FileKind::File,
        attributes: None,
    };
    numbers.map(entry).collect()
}

/// Random numbers.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (bits ^ (bits >> 31)) % bound
    }
}

/// A change of names or attributes.
#[derive(Clone, Debug)]
enum Change {
    /// Makes a file, or removes what is there.
    Flip(InodeId, u64),
    Move((InodeId, u64), (InodeId, u64)),
    /// Gives a file another name.
    Link(InodeId, (InodeId, u64)),
    Chmod(InodeId),
}

impl Change {
    fn concerned(&self) -> Concerned {
        let name = |(directory, number): (InodeId, u64)| (directory, text(number));
        let (names, inodes) = match *self {
            Self::Flip(directory, number) => (vec![name((directory, number))], vec![]),
            Self::Move(from, to) => (vec![name(from), name(to)], vec![]),
            Self::Link(inode, to) => (vec![name(to)], vec![inode]),
            Self::Chmod(inode) => (vec![], vec![inode]),
        };
        Concerned { names, inodes }
    }
}

/// What is there.
#[derive(Default)]
struct Owner {
    last: u64,
    names: BTreeMap<(InodeId, u64), InodeId>,
    inodes: BTreeMap<InodeId, Attributes>,
}

impl Owner {
    fn new() -> Self {
        let mut owner = Self {
            last: 10,
            ..Self::default()
        };
        for inode in [ROOT, CHILD] {
            let made = attributes(inode, FileKind::Directory);
            owner.inodes.insert(inode, made);
        }
        owner.names.insert((ROOT, 0), CHILD);
        owner
    }

    fn touch(&mut self, inode: InodeId) {
        self.last += 1;
        let at = self.last as i64;
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.ctime = Timestamp(at);
        }
    }

    fn drop_name(&mut self, at: (InodeId, u64)) {
        if let Some(gone) = self.names.remove(&at) {
            self.touch(gone);
            let gone = self.inodes.get_mut(&gone).expect("it had a name");
            gone.links -= 1;
        }
    }

    fn apply(&mut self, change: &Change) {
        match *change {
            // The directory stays.
            Change::Flip(ROOT, 0) => {}
            Change::Flip(directory, number) => {
                if self.names.contains_key(&(directory, number)) {
                    self.drop_name((directory, number));
                } else {
                    self.last += 1;
                    let made = InodeId(self.last);
                    self.inodes.insert(made, attributes(made, FileKind::File));
                    self.names.insert((directory, number), made);
                }
                self.touch(directory);
            }
            Change::Move(from, to) => {
                let is_fixed = from == (ROOT, 0) || to == (ROOT, 0) || from == to;
                let Some(moved) = self.names.get(&from).copied().filter(|_| !is_fixed) else {
                    return;
                };
                if self.names.get(&to) == Some(&moved) {
                    return;
                }
                self.drop_name(to);
                self.names.remove(&from);
                self.names.insert(to, moved);
                [moved, from.0, to.0]
                    .into_iter()
                    .for_each(|it| self.touch(it));
            }
            Change::Link(inode, to) => {
                let known = self.inodes.get_mut(&inode);
                let Some(known) = known.filter(|it| it.links > 0 && it.kind == FileKind::File)
                else {
                    return;
                };
                if self.names.contains_key(&to) {
                    return;
                }
                known.links += 1;
                self.names.insert(to, inode);
                [inode, to.0].into_iter().for_each(|it| self.touch(it));
            }
            Change::Chmod(inode) => self.touch(inode),
        }
    }

    /// What its answer to a change of this client says that it has applied.
    fn became(&self, change: &Change) -> Option<Became> {
        match *change {
            Change::Flip(ROOT, 0) => None,
            Change::Flip(directory, number) => {
                let leads = self.find(directory, number);
                Some(Became {
                    leads: leads.map(|made| (made.inode, made.kind)),
                    directory: Some(self.inodes[&directory]),
                })
            }
            _ => None,
        }
    }

    fn find(&self, directory: InodeId, number: u64) -> Option<&Attributes> {
        let inode = self.names.get(&(directory, number))?;
        Some(&self.inodes[inode])
    }

    fn list(
        &self,
        directory: InodeId,
        after: u64,
        limit: usize,
        with_attributes: bool,
    ) -> (Vec<DirectoryEntry>, bool) {
        let all = self.names.iter();
        let all = all.filter(|((of, _), _)| *of == directory);
        let rest = all.map(|((_, number), inode)| DirectoryEntry {
            position: number + 3,
            name: text(*number),
            inode: *inode,
            kind: self.inodes[inode].kind,
            attributes: with_attributes.then(|| self.inodes[inode]),
        });
        let rest: Vec<_> = rest.filter(|entry| entry.position > after).collect();
        let end = rest.len() <= limit;
        (rest.into_iter().take(limit).collect(), end)
    }
}

/// A question on its way.
struct Question {
    asked: Asked,
    directory: InodeId,
    what: What,
    answer: Option<Answer>,
}

#[derive(Clone, Copy)]
enum What {
    Name(u64),
    List(u64, bool),
    Attributes,
    /// The token of what has this name, with its attributes.
    Token(u64),
}

enum Answer {
    Name(Option<Attributes>),
    List(Vec<DirectoryEntry>, bool),
    Attributes(Attributes),
    /// `None`: it isn't granted, or was given back before the answer came.
    Token(Option<Attributes>),
}

/// A change of this client under way.
struct Own {
    change: Change,
    begun: u64,
    is_applied: bool,
    /// Its answer, if that isn't lost.
    became: Option<Became>,
}

struct Run {
    draw: Draw,
    owner: Owner,
    memory: Memory,
    held: BTreeMap<TokenObject, TokenMode>,
    questions: Vec<Question>,
    changes: Vec<Own>,
    now: Moment,
    hits: [usize; 4],
    /// How often attributes came with their token and are known.
    came: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            draw: Draw(seed),
            owner: Owner::new(),
            memory: Memory::new(1 << 20),
            held: BTreeMap::new(),
            questions: Vec::new(),
            changes: Vec::new(),
            now: Moment::default(),
            hits: [0; 4],
            came: 0,
        }
    }

    /// Inodes whose tokens are granted and haven't come.
    fn on_the_way(&self) -> Vec<InodeId> {
        let questions = self.questions.iter();
        let granted = questions.filter_map(|question| match &question.answer {
            Some(Answer::Token(shown)) => shown.as_ref(),
            _ => None,
        });
        granted.map(|shown| shown.inode).collect()
    }

    fn directory(&mut self) -> InodeId {
        InodeId(1 + self.draw.below(2))
    }

    fn inode(&mut self) -> InodeId {
        let at = self.draw.below(self.owner.inodes.len() as u64) as usize;
        let mut inodes = self.owner.inodes.keys().copied();
        // Mostly those that have names.
        let named: Vec<_> = self.owner.names.values().copied().collect();
        match self.draw.below(8) {
            0 => inodes.nth(at).expect("one of them"),
            1 => ROOT,
            _ => named[self.draw.below(named.len() as u64) as usize],
        }
    }

    fn change(&mut self) -> Change {
        let name = |run: &mut Self| (run.directory(), run.draw.below(NAMES));
        match self.draw.below(8) {
            0..4 => {
                let (directory, number) = name(self);
                Change::Flip(directory, number)
            }
            4..6 => Change::Move(name(self), name(self)),
            6 => Change::Link(self.inode(), name(self)),
            _ => Change::Chmod(self.inode()),
        }
    }

    fn take(&mut self, object: TokenObject) {
        if self.held.remove(&object).is_some() {
            self.memory.show(object, None, self.now);
        }
    }

    fn grant(&mut self) {
        let object = match self.draw.below(2) {
            0 => TokenObject::Directory(self.directory()),
            _ => TokenObject::Inode(self.inode()),
        };
        let mode = match (object, self.draw.below(6)) {
            (TokenObject::Inode(_), 0) => TokenMode::SharedWrite,
            (TokenObject::Inode(_), 1) => TokenMode::Exclusive,
            _ => TokenMode::Shared,
        };
        self.held.insert(object, mode);
        self.memory.show(object, Some(mode), self.now);
    }

    /// Another client's change: what is held of it is taken first.
    fn others_change(&mut self) {
        let change = self.change();
        let concerned = change.concerned();
        let on_the_way = self.on_the_way();
        for object in concerned.objects() {
            let is_on_the_way = |inode: &InodeId| TokenObject::Inode(*inode) == object;
            // Several may change attributes at the same time.
            let together = matches!(change, Change::Chmod(_))
                && self.held.get(&object) == Some(&TokenMode::SharedWrite)
                && !on_the_way.iter().any(is_on_the_way);
            if !together {
                self.take(object);
            }
            // A recall that overtakes a grant is answered, and the grant doesn't count any more.
            for question in &mut self.questions {
                if let Some(Answer::Token(shown)) = &mut question.answer {
                    *shown = shown.filter(|shown| !is_on_the_way(&shown.inode));
                }
            }
        }
        self.owner.apply(&change);
    }

    fn own_change(&mut self) {
        if self.changes.len() < 3 {
            let change = self.change();
            // An exclusive change of its attributes ends that others write too.
            let begun = self.memory.begin_change(&change.concerned());
            self.changes.push(Own {
                change,
                begun,
                is_applied: false,
                became: None,
            });
            return;
        }
        let at = self.draw.below(3) as usize;
        let is_heard = self.draw.below(4) > 0;
        let own = &mut self.changes[at];
        if !own.is_applied {
            own.is_applied = true;
            self.owner.apply(&own.change);
            own.became = self.owner.became(&own.change).filter(|_| is_heard);
        } else {
            let own = self.changes.swap_remove(at);
            let concerned = own.change.concerned();
            self.memory
                .end_change(&concerned, own.begun, own.became.as_ref());
        }
    }

    fn ask(&mut self) {
        if self.questions.len() >= 4 {
            return;
        }
        let what = match self.draw.below(9) {
            0..3 => What::List(
                [0, 0, 4][self.draw.below(3) as usize],
                self.draw.below(2) == 0,
            ),
            3 => What::Attributes,
            4 => {
                self.memory.begin_to_know();
                What::Token(self.draw.below(NAMES))
            }
            _ => What::Name(self.draw.below(NAMES)),
        };
        let question = Question {
            asked: self.memory.begin(),
            directory: self.directory(),
            what,
            answer: None,
        };
        self.questions.push(question);
    }

    fn answer(&mut self) {
        if self.questions.is_empty() {
            return;
        }
        let at = self.draw.below(self.questions.len() as u64) as usize;
        let on_the_way = self.on_the_way();
        let question = &mut self.questions[at];
        let directory = question.directory;
        if question.answer.is_none() {
            question.answer = Some(match question.what {
                What::Name(number) => Answer::Name(self.owner.find(directory, number).copied()),
                What::List(after, with_attributes) => {
                    let (entries, end) = self.owner.list(directory, after, 2, with_attributes);
                    Answer::List(entries, end)
                }
                What::Attributes => Answer::Attributes(self.owner.inodes[&directory]),
                What::Token(number) => {
                    let found = self.owner.find(directory, number).copied();
                    Answer::Token(found.filter(|found| {
                        let object = TokenObject::Inode(found.inode);
                        let is_held = self.held.contains_key(&object);
                        !is_held && !on_the_way.contains(&found.inode)
                    }))
                }
            });
            return;
        }
        let Question {
            asked,
            what,
            answer,
            ..
        } = self.questions.swap_remove(at);
        match (what, answer) {
            (What::Name(number), Some(Answer::Name(found))) => {
                let name = text(number);
                self.memory
                    .learn(directory, name.as_bytes(), found.as_ref(), asked);
            }
            (What::List(after, _), Some(Answer::List(entries, end))) => {
                self.memory
                    .learn_listing(directory, after, &entries, end, asked);
            }
            (What::Attributes, Some(Answer::Attributes(attributes))) => {
                self.memory.learn_attributes(&attributes, asked);
            }
            (What::Token(number), Some(Answer::Token(shown))) => {
                if let Some(attributes) = shown {
                    self.come(directory, number, attributes, asked);
                }
                self.memory.end_to_know();
            }
            _ => unreachable!("the answer fits"),
        }
    }

    /// A token comes with the attributes of what has a name.
    fn come(&mut self, directory: InodeId, number: u64, attributes: Attributes, asked: Asked) {
        let (inode, kind) = (attributes.inode, attributes.kind);
        let object = TokenObject::Inode(inode);
        let shared = TokenMode::Shared;
        let held = self.held.get(&object);
        let mode = held.map_or(shared, |held| held.or(shared));
        self.held.insert(object, mode);
        let before = self.memory.count();
        self.memory.show(object, Some(mode), self.now);
        let came = Came::new(vec![attributes], before, self.memory.count());
        let entry = DirectoryEntry {
            position: number + 3,
            name: text(number),
            inode,
            kind,
            attributes: Some(attributes),
        };
        self.memory.learn_granted(directory, &entry, &came, asked);
        let name = text(number);
        let known = self.memory.look(directory, name.as_bytes(), self.now);
        self.came += usize::from(matches!(known, Looked::Found(..)));
    }

    /// All that is known is there.
    fn check(&mut self) {
        for directory in [ROOT, CHILD] {
            for number in 0..NAMES {
                let found = self.owner.find(directory, number);
                let name = text(number);
                match self.memory.look(directory, name.as_bytes(), self.now) {
                    Looked::Found(known, _) => {
                        self.hits[0] += 1;
                        assert_eq!(Some(&known), found, "{directory} {number}");
                    }
                    Looked::Missing => {
                        self.hits[1] += 1;
                        assert_eq!(found, None, "{directory} {number} is there");
                    }
                    Looked::Unknown(_) => {}
                }
            }
            for (after, with_attributes) in [(0, false), (4, false), (0, true)] {
                let listed = self.memory.list(directory, after, 3, with_attributes);
                if let Some(listed) = listed {
                    self.hits[2] += 1;
                    let there = self.owner.list(directory, after, 3, with_attributes);
                    // A part may be known.
                    let (entries, is_end) = &listed;
                    assert!(*is_end || !entries.is_empty(), "{directory} after {after}");
                    assert_eq!(entries[..], there.0[..entries.len()], "{directory}");
                    assert!(!is_end || listed == there, "{directory} after {after}");
                }
            }
            if let LookedAt::Known(known, _) = self.memory.look_at(directory, self.now) {
                self.hits[3] += 1;
                assert_eq!(known, self.owner.inodes[&directory], "{directory}");
            }
        }
        assert_eq!(self.memory.bytes(), self.memory.recounted());
    }

    fn step(&mut self) {
        self.now = self.now.plus(Duration::from_millis(100));
        match self.draw.below(32) {
            0 => self.others_change(),
            1 => {
                let held: Vec<_> = self.held.keys().copied().collect();
                if !held.is_empty() {
                    let at = self.draw.below(held.len() as u64) as usize;
                    self.take(held[at]);
                }
            }
            2..5 => self.own_change(),
            5..12 => self.grant(),
            12..20 => self.ask(),
            _ => self.answer(),
        }
        self.check();
    }
}

#[test]
fn what_is_known_is_there() {
    let (mut hits, mut came) = ([0; 4], 0);
    for seed in 0..200 {
        let mut run = Run::new(seed);
        for _ in 0..1_500 {
            run.step();
        }
        (0..4).for_each(|kind| hits[kind] += run.hits[kind]);
        came += run.came;
    }
    assert!(came > 5, "{came}");
    assert!(hits[..3].iter().all(|hits| *hits > 10_000), "{hits:?}");
    assert!(hits[3] > 1_000, "{hits:?}");
}

/// What a program does that makes many files, whose kernel looks for each before.
#[test]
fn names_that_this_client_makes_leave_the_others_known() {
    let mut memory = Memory::new(1 << 20);
    let now = Moment::default();
    let shared = Some(TokenMode::Shared);
    memory.show(TokenObject::Directory(ROOT), shared, now);
    memory.show(TokenObject::Inode(ROOT), shared, now);
    let look = |memory: &mut Memory, number| memory.look(ROOT, text(number).as_bytes(), now);
    for number in 0..4 {
        assert_eq!(memory.wants_names(ROOT), None);
        assert_eq!(look(&mut memory, number), Looked::Unknown(vec![]));
        let asked = memory.begin();
        memory.learn(ROOT, text(number).as_bytes(), None, asked);
    }
    assert_eq!(memory.wants_names(ROOT), Some(1));
    assert_eq!(memory.wants_names(ROOT), None);
    let asked = memory.begin();
    memory.learn_listing(ROOT, 0, &[], true, asked);
    assert_eq!(look(&mut memory, 9), Looked::Missing);

    let make = |number| Change::Flip(ROOT, number).concerned();
    let made = |number| Became {
        leads: Some((InodeId(100 + number), FileKind::File)),
        directory: Some(Attributes {
            ctime: Timestamp(number as i64),
            ..attributes(ROOT, FileKind::Directory)
        }),
    };
    let ctime = |memory: &mut Memory| match memory.look_at(ROOT, now) {
        LookedAt::Known(attributes, _) => Some(attributes.ctime),
        LookedAt::Unknown(_) => None,
    };
    for number in 10..20 {
        assert_eq!(look(&mut memory, number), Looked::Missing);
        let begun = memory.begin_change(&make(number));
        assert_eq!(look(&mut memory, number), Looked::Unknown(vec![]));
        assert_eq!(look(&mut memory, 9), Looked::Missing);
        assert_eq!(ctime(&mut memory), None);
        memory.end_change(&make(number), begun, Some(&made(number)));
        // Nobody has asked for its attributes yet.
        assert_eq!(look(&mut memory, number), Looked::Unknown(vec![]));
        assert_eq!(ctime(&mut memory), Some(Timestamp(number as i64)));
    }

    // Two at the same time: each says of its own name what came of it, and of the directory neither.
    let begun = [30, 31].map(|number| memory.begin_change(&make(number)));
    memory.end_change(&make(30), begun[0], Some(&made(30)));
    memory.end_change(&make(31), begun[1], None);
    assert_eq!(ctime(&mut memory), None);
    let named = memory.look(ROOT, text(30).as_bytes(), now);
    assert_eq!(named, Looked::Unknown(vec![]));
    assert_eq!(look(&mut memory, 31), Looked::Unknown(vec![]));
    assert_eq!(look(&mut memory, 32), Looked::Missing);

    // The token was away meanwhile.
    let begun = memory.begin_change(&make(40));
    memory.show(TokenObject::Directory(ROOT), None, now);
    memory.show(TokenObject::Directory(ROOT), shared, now);
    memory.end_change(&make(40), begun, Some(&made(40)));
    let asked = memory.begin();
    memory.learn_listing(ROOT, 0, &[], true, asked);
    assert_eq!(
        look(&mut memory, 40),
        Looked::Missing,
        "another client removed it"
    );
    assert_eq!(ctime(&mut memory), None);
    assert_eq!(memory.bytes(), memory.recounted());
}

/// Kernels ask for the attributes of directories by their numbers.
#[test]
fn attributes_of_a_directory_are_known_as_long_as_its_name_leads_to_it() {
    let mut memory = Memory::new(1 << 20);
    let now = Moment::default();
    let shared = Some(TokenMode::Shared);
    let found = attributes(CHILD, FileKind::Directory);
    let nothing = LookedAt::Unknown(vec![]);
    assert_eq!(memory.look_at(CHILD, now), nothing, "nobody knows its name");
    memory.show(TokenObject::Directory(ROOT), shared, now);
    let asked = memory.begin();
    memory.learn(ROOT, text(0).as_bytes(), Some(&found), asked);
    assert_eq!(memory.look_at(CHILD, now), nothing, "for the first time");
    let both = [TokenObject::Inode(CHILD), TokenObject::Directory(CHILD)];
    let wanted = LookedAt::Unknown(both.to_vec());
    assert_eq!(memory.look_at(CHILD, now), wanted);
    for object in both {
        memory.show(object, shared, now);
    }
    let asked = memory.begin();
    let learned = memory.learn_attributes(&found, asked).expect("all is held");
    assert_eq!(memory.look_at(CHILD, now), LookedAt::Known(found, learned));
    assert!(memory.show_attributes(CHILD, learned));
    // Another client moves or removes it.
    memory.show(TokenObject::Directory(ROOT), None, now);
    assert_eq!(memory.look_at(CHILD, now), nothing);
    assert!(!memory.show_attributes(CHILD, learned));
    assert_eq!(memory.take_shown(ROOT), [CHILD]);
    assert!(memory.take_shown(ROOT).is_empty());
}

/// Others move and remove a name with its directory's token alone: a kernel must hear of it whose programs have the
/// file open.
#[test]
fn attributes_that_kernels_keep_end_with_the_token_of_the_directory_or_of_the_inode() {
    let mut memory = Memory::new(1 << 20);
    let (file, now) = (InodeId(20), Moment::default());
    let name = text(1);
    let learns = |memory: &mut Memory| {
        for object in [TokenObject::Directory(ROOT), TokenObject::Inode(file)] {
            memory.show(object, Some(TokenMode::Shared), now);
        }
        let found = attributes(file, FileKind::File);
        let asked = memory.begin();
        let learned = memory.learn(ROOT, name.as_bytes(), Some(&found), asked);
        learned.expect("all is held")
    };
    let learned = learns(&mut memory);
    assert!(memory.take_shown(ROOT).is_empty(), "nobody was told");
    let shown = memory.show_entry(ROOT, name.as_bytes(), learned);
    assert_eq!(shown, (true, true));
    // The inode's token is on its way back, and kernels haven't heard of it.
    memory.show(TokenObject::Inode(file), None, now);
    memory.show(TokenObject::Directory(ROOT), None, now);
    assert_eq!(memory.take_shown(ROOT), [file]);

    let learned = learns(&mut memory);
    let shown = memory.show_entry(ROOT, name.as_bytes(), learned);
    assert_eq!(shown, (true, true));
    memory.show(TokenObject::Inode(file), None, now);
    let shown = memory.show_entry(ROOT, name.as_bytes(), learned);
    assert_eq!(shown, (true, false));
    memory.hide(file);
    assert!(memory.take_shown(ROOT).is_empty());
    assert_eq!(memory.bytes(), memory.recounted());
}

#[test]
fn names_take_no_more_bytes_than_they_may() {
    let most = 1 << 20;
    let mut memory = Memory::new(most);
    let now = Moment::default();
    let (mut largest, mut forgotten) = (0, 0);
    for directory in 0..40 {
        let directory = InodeId(1 + directory);
        memory.show(
            TokenObject::Directory(directory),
            Some(TokenMode::Shared),
            now,
        );
        for number in 0..1_000 {
            let inode = InodeId(1_000 * directory.0 + number);
            memory.show(TokenObject::Inode(inode), Some(TokenMode::Shared), now);
            let asked = memory.begin();
            let found = attributes(inode, FileKind::File);
            let name = text(number);
            let found = (number % 3 > 0).then_some(&found);
            memory.learn(directory, name.as_bytes(), found, asked);
            let known = memory.look(directory, name.as_bytes(), now);
            forgotten += u32::from(matches!(known, Looked::Unknown(_)));
            largest = largest.max(memory.bytes());
            assert_eq!(memory.bytes(), memory.recounted());
            memory.show(TokenObject::Inode(inode), None, now);
        }
    }
    assert!(largest <= most && largest > most / 2, "{largest} bytes");
    assert!(forgotten < 100, "{forgotten} forgotten at once");
}

/// For how long a token isn't asked for from then on, in milliseconds.
fn rest(memory: &Memory, object: TokenObject, now: u64) -> u64 {
    let at = |millis| Moment(Duration::from_millis(millis));
    let rest = (0..10_000).find(|rest: &u64| memory.wants(object, at(now + rest)));
    rest.expect("it is asked for again")
}

#[test]
fn a_token_that_others_wanted_is_not_asked_for_at_once() {
    let mut memory = Memory::new(1 << 20);
    let object = TokenObject::Directory(ROOT);
    let at = |millis| Moment(Duration::from_millis(millis));
    assert!(memory.wants(object, at(10)));
    memory.show(object, Some(TokenMode::Shared), at(10));
    assert!(!memory.wants(object, at(10)));
    memory.show(object, None, at(2_000));
    assert_eq!(rest(&memory, object, 2_000), 50);
    // It was lost once, however often that is said.
    memory.show(object, None, at(2_001));
    assert_eq!(rest(&memory, object, 2_000), 50);
}

#[test]
fn a_token_that_is_refused_again_and_again_is_asked_for_less_and_less_often() {
    let mut memory = Memory::new(1 << 20);
    let object = TokenObject::Directory(ROOT);
    let at = |millis| Moment(Duration::from_millis(millis));
    let (mut now, mut pauses) = (0, Vec::new());
    for _ in 0..8 {
        // Several operations wait for the same answer.
        (0..8).for_each(|_| memory.refuse(object, at(now)));
        let pause = rest(&memory, object, now);
        pauses.push(pause);
        now += pause;
    }
    assert_eq!(pauses, [50, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
    // Until nobody has wanted it for a while.
    now += 4_000;
    memory.refuse(object, at(now));
    assert_eq!(rest(&memory, object, now), 50);
}

#[test]
fn no_more_refusals_are_remembered_than_may_be() {
    let mut memory = Memory::new(1 << 20);
    let at = |millis| Moment(Duration::from_millis(millis));
    let inode = |number| TokenObject::Inode(InodeId(number));
    memory.refuse(inode(0), at(0));
    for number in 1..4_096 {
        memory.refuse(inode(number), at(200));
    }
    let most = memory.bytes();
    // What has faded makes room.
    memory.refuse(inode(4_096), at(250));
    assert_eq!(rest(&memory, inode(1), 200), 50);
    for number in 4_097..100_000 {
        memory.refuse(inode(number), at(250));
        assert!(memory.bytes() <= most);
    }
}

/// An owner that contradicts itself.
#[test]
fn a_listed_name_that_is_found_missing_ends_the_listing() {
    let mut memory = Memory::new(1 << 20);
    let now = Moment::default();
    memory.show(TokenObject::Directory(ROOT), Some(TokenMode::Shared), now);
    let asked = memory.begin();
    memory.learn_listing(ROOT, 0, &entries(1..3), true, asked);
    let (listed, is_end) = memory.list(ROOT, 0, 10, false).expect("it is known");
    assert_eq!((listed.len(), is_end), (2, true));
    let asked = memory.begin();
    memory.learn(ROOT, text(1).as_bytes(), None, asked);
    assert_eq!(memory.list(ROOT, 0, 10, false), None);
    let missing = memory.look(ROOT, text(1).as_bytes(), now);
    assert_eq!(missing, Looked::Missing);
}

/// Would be broken if who begins at the start, and asks because something there can't be known, took away what others read ahead.
#[test]
fn a_listing_from_the_start_leaves_what_is_known_of_its_rest() {
    let mut memory = Memory::new(1 << 20);
    let now = Moment::default();
    memory.show(TokenObject::Directory(ROOT), Some(TokenMode::Shared), now);
    let learn = |memory: &mut Memory, after, numbers, is_end| {
        let asked = memory.begin();
        let entries = entries(numbers);
        let is_kept = memory.learn_listing(ROOT, after, &entries, is_end, asked);
        assert!(is_kept, "{after}");
    };
    learn(&mut memory, 0, 1..5, false);
    learn(&mut memory, 4, 5..9, false);
    learn(&mut memory, 0, 1..3, false);
    let (listed, is_end) = memory.list(ROOT, 2, 20, false).expect("it is known");
    assert_eq!((listed.len(), is_end), (6, false));
    learn(&mut memory, 8, 9..11, true);
    learn(&mut memory, 0, 1..3, false);
    let (listed, is_end) = memory.list(ROOT, 0, 20, false).expect("it is known");
    assert_eq!((listed.len(), is_end), (10, true));
}

/// Would be broken if an answer were kept that lacks a change which was under way when tokens came into use again.
#[test]
fn a_client_that_has_everything_learns_nothing_nor_beside_a_change_of_that_time() {
    let names = KnownNames::new();
    let (name, now) = (text(1), Moment::default());
    let learns = || names.learn(ROOT, &name, None, names.begin()).is_some();
    let held = TokenObject::Directory(ROOT);
    names.show(held, Some(TokenMode::Shared), now);
    assert!(learns());
    let before = names.begin();
    names.rest();
    let looked = names.look(ROOT, &name, now);
    assert!(matches!(looked, Looked::Unknown(_)), "it is forgotten");
    assert!(names.learn(ROOT, &name, None, before).is_none());
    assert!(!learns());
    let unlink = Operation::Unlink {
        directory: ROOT,
        name: name.clone(),
    };
    let change = names.begin_near_change(&unlink);
    names.go_on();
    assert!(!learns(), "the outcome of a change isn't known");
    drop(change);
    assert!(learns());
}

/// Would be broken if a change that began before were learned when it ends: the same name may have been changed once more
/// meanwhile, when that wasn't counted.
#[test]
fn a_change_that_began_before_the_client_had_everything_teaches_nothing() {
    let names = KnownNames::new();
    let (name, now) = (text(1), Moment::default());
    names.show(TokenObject::Directory(ROOT), Some(TokenMode::Shared), now);
    let unlink = Operation::Unlink {
        directory: ROOT,
        name: name.clone(),
    };
    let removed = Reply::Removed {
        attributes: attributes(InodeId(7), FileKind::File),
        directory: attributes(ROOT, FileKind::Directory),
        orphaned: false,
    };
    let is_missing = || names.look(ROOT, &name, now) == Looked::Missing;
    for ends_late in [false, true] {
        let mut first = names.begin_change(&unlink);
        if let Some(first) = &mut first {
            first.note(&unlink, &removed);
        }
        names.rest();
        // It makes the name again, say.
        drop(names.begin_near_change(&unlink));
        if !ends_late {
            drop(first.take());
        }
        names.go_on();
        drop(first);
        assert!(!is_missing(), "{ends_late}");
    }
    let mut change = names.begin_change(&unlink);
    if let Some(change) = &mut change {
        change.note(&unlink, &removed);
    }
    drop(change);
    assert!(is_missing(), "this one is known");
}

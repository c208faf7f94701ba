//! What all programs of a run share: what they saw, and what there is to ask about.

use super::CrowdScenario;
use super::listening::{Heard, Verb, verb};
use super::locks::Locks;
use super::own::OwnDirectories;
use crate::action::Draw;
use crate::cluster::FaultKind;
use crate::witness::{AHEAD, Answer, Call, ClientNumber, Event, History, NEVER, Seen, Tick};
use client::Client;
use model::operation::RenameMode;
use model::{FamilyId, FileKind, InodeId, NodeId, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Names in each directory.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// Directories that programs know at a time.
const DIRECTORIES_MAX: usize = 5;
/// Files that programs know at a time.
const FILES_MAX: usize = 6;
/// Cells that random writes begin in.
pub(super) const CELLS: u64 = 9;
/// Cells of the file from which programs copy and that nobody changes, and the value of the first one; the others
/// follow.
pub(super) const TEMPLATE_CELLS: u64 = 12;
pub(super) const TEMPLATE_VALUES: u32 = 1 << 30;
/// Cells of a file from which on nothing is appended.
const APPEND_BELOW: usize = 14;

/// What all programs share.
pub(super) struct Known {
    shard: ShardId,
    root: InodeId,
    events: Vec<Event>,
    /// Attributes in listings: of which event.
    listed: Vec<(usize, Seen)>,
    ticks: Tick,
    clients: ClientNumber,
    /// The client of each node.
    current: BTreeMap<NodeId, ClientNumber>,
    /// All clients that were opened, and where.
    opened: BTreeMap<ClientNumber, (NodeId, Weak<Client>)>,
    lost: BTreeSet<ClientNumber>,
    /// Clients that ended with their daemons, and since when nothing comes of what they asked.
    killed: Vec<(NodeId, ClientNumber)>,
    over: BTreeMap<ClientNumber, Tick>,
    /// Those that use nothing any more: they are about to end, or have.
    closing: BTreeSet<ClientNumber>,
    directories: Vec<InodeId>,
    files: Vec<InodeId>,
    /// What is known of the sizes of files, for appends.
    cells: BTreeMap<InodeId, usize>,
    values: u32,
    pub(super) draw: Draw,
    pub(super) faults_are_over: bool,
    /// Whether programs change few names, so that clients keep what they know of them: in each fourth seed.
    looks_mostly: bool,
    /// Nodes whose clients may have lost their sessions, and whether any may.
    cut_off: BTreeSet<NodeId>,
    may_fail: bool,
    /// No fault happens, and no program maps files: pages that are written back may set times later.
    has_right_times: bool,
    was_hit: bool,
    broken: Option<String>,
    /// The file with the counters.
    pub(super) counters: Option<InodeId>,
    /// A file that nobody changes, to copy from.
    pub(super) template: Option<InodeId>,
    pub(super) locks: Locks,
    pub(super) own: OwnDirectories,
    /// Files that clients have made under delegations.
    delegated: BTreeSet<InodeId>,
    /// What was made, also if it was lost: nothing else ever gets such a number.
    made: BTreeSet<InodeId>,
    pub(super) heard: Arc<Mutex<Heard>>,
}

pub(super) type Shared = Arc<Mutex<Known>>;

pub(super) fn lock(known: &Shared) -> MutexGuard<'_, Known> {
    known.lock().expect("one thread")
}

impl Known {
    /// Nothing was seen of a shard yet.
    pub(super) fn new(
        seed: u64,
        scenario: &CrowdScenario,
        shard: ShardId,
        family: FamilyId,
    ) -> Shared {
        let root = family.root();
        Arc::new(Mutex::new(Self {
            shard,
            root,
            events: Vec::new(),
            listed: Vec::new(),
            ticks: 0,
            clients: 0,
            current: BTreeMap::new(),
            opened: BTreeMap::new(),
            lost: BTreeSet::new(),
            killed: Vec::new(),
            over: BTreeMap::new(),
            closing: BTreeSet::new(),
            directories: vec![root],
            files: Vec::new(),
            cells: BTreeMap::new(),
            values: 0,
            draw: Draw::new(seed ^ 0xC20 ^ u64::from(shard.0) << 48),
            faults_are_over: false,
            looks_mostly: seed % 4 == 3,
            cut_off: BTreeSet::new(),
            may_fail: scenario.may_fail(),
            has_right_times: scenario.cluster.faults == 0 && !scenario.maps(),
            was_hit: false,
            broken: None,
            counters: None,
            template: None,
            locks: Locks::default(),
            own: OwnDirectories::new(seed),
            delegated: BTreeSet::new(),
            made: BTreeSet::new(),
            heard: Arc::default(),
        }))
    }

    pub(super) fn shard(&self) -> ShardId {
        self.shard
    }

    pub(super) fn root(&self) -> InodeId {
        self.root
    }

    fn tick(&mut self) -> Tick {
        self.ticks += 1;
        self.ticks
    }

    /// Whether programs work on this file.
    pub(super) fn is_file(&self, inode: InodeId) -> bool {
        self.files.contains(&inode)
    }

    /// Programs don't work on this file.
    pub(super) fn forget(&mut self, inode: InodeId) {
        self.files.retain(|file| *file != inode);
    }

    /// A client is opened on a node.
    pub(super) fn new_client(&mut self, node: NodeId, client: &Arc<Client>) -> ClientNumber {
        // The owner has ended the sessions of the node's former daemons before: what they asked for and didn't hear
        // of was done by now, or never is.
        let now = self.tick();
        let over: Vec<_> = self.killed.extract_if(.., |(on, _)| *on == node).collect();
        self.over
            .extend(over.into_iter().map(|(_, client)| (client, now)));
        self.clients += 1;
        self.current.insert(node, self.clients);
        let client = Arc::downgrade(client);
        self.opened.insert(self.clients, (node, client));
        self.clients
    }

    /// The clients that may still be there.
    pub(super) fn open_clients(
        &self,
    ) -> impl Iterator<Item = (ClientNumber, &(NodeId, Weak<Client>))> {
        let open = self.opened.iter();
        open.map(|(number, client)| (*number, client))
    }

    /// The directory that a client has for itself, if any.
    pub(super) fn own_directory(&mut self, client: ClientNumber) -> Option<InodeId> {
        let (lost, closing) = (&self.lost, &self.closing);
        let is_gone = |other: ClientNumber| lost.contains(&other) || closing.contains(&other);
        self.own.of(client, is_gone)
    }

    /// A client begins to end. Its owner may have forgotten it before it knows.
    pub(super) fn closes(&mut self, client: ClientNumber) {
        self.closing.insert(client);
    }

    /// Whether it has not begun to end.
    pub(super) fn is_used(&self, client: ClientNumber) -> bool {
        !self.closing.contains(&client)
    }

    /// The client of a node is gone with its daemon.
    pub(super) fn lose(&mut self, node: NodeId) {
        let client = self.current.get(&node).copied();
        self.lost.extend(client);
        self.killed.extend(client.map(|client| (node, client)));
        client.into_iter().for_each(|it| self.locks.lose(it));
    }

    /// A client has lost its session.
    pub(super) fn lose_client(&mut self, client: ClientNumber) {
        if self.is_lost(client) {
            return;
        }
        let node = self.opened.get(&client).map(|it| it.0);
        let is_cut_off = node.is_some_and(|node| self.cut_off.contains(&node));
        if !(is_cut_off || self.may_fail && self.was_hit) {
            let open = self.under_way();
            self.breaks(format!(
                "client {client} has lost its session, and nothing was wrong with its node; under way: {open:#?}"
            ));
        }
        self.lost.insert(client);
        self.locks.lose(client);
    }

    /// Operations that aren't answered yet, in order of their begins.
    fn under_way(&self) -> Vec<String> {
        let open = self
            .events
            .iter()
            .filter(|event| event.ended == NEVER && !self.lost.contains(&event.client));
        let open = open.map(|it| format!("{} by {}: {:?}", it.begun, it.client, it.call));
        open.collect()
    }

    pub(super) fn is_lost(&self, client: ClientNumber) -> bool {
        self.lost.contains(&client)
    }

    /// A fault begins, by which the clients of these nodes may lose their sessions; where programs wait
    /// for a moment only, any may.
    pub(super) fn hit(&mut self, kind: FaultKind, cut_off: Vec<NodeId>) {
        // Who owns the shard, and what a disk does, costs nobody a session but on the former owner's node.
        let is_harmless = matches!(
            kind,
            FaultKind::Move | FaultKind::ChangeLeader | FaultKind::SlowDisk
        );
        self.was_hit |= !is_harmless;
        self.cut_off.extend(cut_off);
    }

    /// From now on nobody loses a session.
    pub(super) fn all_is_well(&mut self) {
        self.was_hit = false;
        self.cut_off.clear();
    }

    /// A daemon ends in the midst of something, and starts again. The shard may be taken from its owner, whose clients may
    /// lose their sessions then.
    pub(super) fn is_interrupted(&mut self, owner: Option<NodeId>) {
        self.was_hit = true;
        self.cut_off.extend(owner);
    }

    /// The file with the counters was made; other operations leave it alone.
    pub(super) fn has_counters(&mut self, inode: InodeId) {
        self.counters = Some(inode);
        self.forget(inode);
    }

    /// The first promise that a program saw broken.
    pub(super) fn breaks(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(super) fn broken(&self) -> Option<String> {
        self.broken
            .clone()
            .or_else(|| self.locks.broken(&self.lost))
    }

    /// An operation begins. Until it is answered, its outcome is unknown.
    pub(super) fn begin(&mut self, client: ClientNumber, is_held: bool, call: Call) -> usize {
        let begun = self.tick();
        self.events.push(Event {
            client,
            begun,
            ended: NEVER,
            call,
            answer: Answer::Unknown,
            rank: None,
            is_delegated: false,
            is_held,
            is_near: false,
        });
        self.events.len() - 1
    }

    /// It is answered.
    pub(super) fn end(&mut self, event: usize, answer: Answer) {
        let ended = self.tick();
        self.learn(event, &answer);
        let answer = match answer {
            Answer::Listed(names, seen) => {
                self.listed
                    .extend(seen.into_iter().map(|seen| (event, seen)));
                Answer::Names(names)
            }
            answer => answer,
        };
        let event = &mut self.events[event];
        (event.ended, event.answer) = (ended, answer);
    }

    fn learn(&mut self, event: usize, answer: &Answer) {
        let call = self.events[event].call.clone();
        let makes = matches!(call, Call::Create { .. } | Call::CreateUnnamed { .. });
        if let Answer::Inode(seen) = answer
            && makes
            && !self.made.insert(seen.inode)
        {
            self.breaks(format!("{call:?} has made what was made before: {seen:?}"));
        }
        let is_secret = self.is_secret(event, answer);
        if let Answer::Inode(seen) = answer
            && !is_secret
        {
            let (list, most, first) = match seen.kind {
                FileKind::Directory => (&mut self.directories, DIRECTORIES_MAX, 1),
                FileKind::File => (&mut self.files, FILES_MAX, 0),
                // Used by their names only.
                _ => return,
            };
            if !list.contains(&seen.inode) && seen.links > 0 {
                if list.len() < most {
                    list.push(seen.inode);
                } else {
                    let at = first + self.draw.below((most - first) as u64) as usize;
                    list[at] = seen.inode;
                }
            }
        }
        let cells = match (&call, answer) {
            (
                Call::Write {
                    inode, cell, cells, ..
                }
                | Call::Zero { inode, cell, cells }
                | Call::Reserve { inode, cell, cells },
                Answer::Done,
            )
            | (Call::Copy { inode, cell, .. }, Answer::Copied(cells)) => {
                let known = self.cells.get(inode).copied().unwrap_or(0);
                Some((*inode, known.max(cell + cells)))
            }
            (Call::Append { inode, cells, .. }, Answer::At(at)) => Some((*inode, at + cells)),
            (Call::Truncate { inode, cells }, Answer::Done) => Some((*inode, *cells)),
            _ => None,
        };
        self.cells.extend(cells);
    }

    /// Whether no other program may use the number of what was found or made: its owner doesn't know it yet, or it is in a
    /// client's own directory.
    fn is_secret(&mut self, event: usize, answer: &Answer) -> bool {
        let Answer::Inode(Seen { inode, .. }) = *answer else {
            return false;
        };
        let Event { client, call, .. } = &self.events[event];
        let heard = self.heard.lock().expect("one thread");
        self.delegated
            .extend(made_by_client(&heard, event, call, answer));
        let is_unsent = self.delegated.contains(&inode) && heard.streamed(inode).is_none();
        self.own.keeps(*client, call, inode) || is_unsent
    }

    /// All that was seen.
    pub(super) fn history(&self) -> History {
        let heard = self.heard.lock().expect("one thread");
        let mut events = self.events.clone();
        let mut completed = Vec::new();
        for (number, event) in events.iter_mut().enumerate() {
            event.is_near = heard.is_near(number);
            let Some((verb, inode)) = verb(&event.call) else {
                continue;
            };
            if matches!(event.answer, Answer::Refused(_)) {
                continue;
            }
            event.rank = heard.rank(number, verb, inode);
            // Its owner has said what it made, and others may use that.
            if event.answer == Answer::Unknown
                && let Some(made) = heard.made(number)
            {
                event.answer = Answer::Leads(made);
                continue;
            }
            if let Some(made) = made_by_client(&heard, number, &event.call, &event.answer) {
                event.is_delegated = true;
                event.rank = heard.streamed(made);
                continue;
            }
            let (
                Call::Lookup { .. } | Call::Create { .. } | Call::CreateUnnamed { .. },
                Answer::Inode(seen),
            ) = (&event.call, &event.answer)
            else {
                continue;
            };
            let (seen, named) = (*seen, (verb, inode));
            if let Some(rank) = heard.attributes_after(number, named, seen.inode) {
                event.answer = Answer::Leads(seen.inode);
                completed.push(Event {
                    call: Call::Stat { inode: seen.inode },
                    answer: Answer::Inode(seen),
                    rank: Some(rank),
                    ..event.clone()
                });
            }
        }
        // Whether what a listing shows came with it or was known before, it was true while it was asked for.
        let listed = self.listed.iter().map(|(event, seen)| Event {
            call: Call::Stat { inode: seen.inode },
            answer: Answer::Inode(*seen),
            rank: None,
            ..events[*event].clone()
        });
        completed.extend(listed);
        events.extend(completed);
        History {
            root: self.root,
            events,
            lost: self.lost.clone(),
            over: self.over.clone(),
            has_right_times: self.has_right_times,
        }
    }

    pub(super) fn answered(&self) -> usize {
        let answered = self.events.iter().filter(|event| event.ended != NEVER);
        answered.count()
    }

    // What to ask next.

    pub(super) fn name(&mut self) -> String {
        let name = self.draw.one_of(&NAMES).expect("there are names");
        (*name).to_string()
    }

    /// A directory that is known.
    pub(super) fn directory(&mut self) -> InodeId {
        let directory = self.draw.one_of(&self.directories);
        *directory.expect("the root is one")
    }

    /// A file that programs work on.
    pub(super) fn file(&mut self) -> Option<InodeId> {
        self.draw.one_of(&self.files).copied()
    }

    pub(super) fn value(&mut self) -> u32 {
        self.values += 1;
        self.values
    }

    /// A random operation.
    pub(super) fn draw_call(&mut self) -> Call {
        match self.draw.below(100) {
            0..45 => self.draw_names(),
            _ => {
                let Some(file) = self.file() else {
                    return self.draw_create(FileKind::File);
                };
                self.draw_content(file)
            }
        }
    }

    fn draw_create(&mut self, kind: FileKind) -> Call {
        Call::Create {
            directory: self.directory(),
            name: self.name(),
            kind,
        }
    }

    fn draw_names(&mut self) -> Call {
        let (directory, name) = (self.directory(), self.name());
        let what = match self.looks_mostly && self.draw.below(10) > 0 {
            true => 16 + self.draw.below(4),
            false => self.draw.below(20),
        };
        match what {
            0..3 => self.draw_create(FileKind::File),
            3 => self.draw_create(FileKind::Symlink),
            4..6 => self.draw_create(FileKind::Directory),
            6..8 => match self.file() {
                Some(inode) => Call::Link {
                    inode,
                    directory,
                    name,
                },
                None => Call::List { directory },
            },
            8..11 => Call::Unlink { directory, name },
            11 => Call::RemoveDirectory { directory, name },
            12..16 => Call::Rename {
                from: (directory, name),
                to: (self.directory(), self.name()),
                mode: match self.draw.below(4) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                },
            },
            16..19 => Call::Lookup { directory, name },
            _ => Call::List { directory },
        }
    }

    /// A random operation on a file.
    pub(super) fn draw_content(&mut self, inode: InodeId) -> Call {
        let (cell, cells) = (
            self.draw.below(CELLS) as usize,
            1 + self.draw.below(3) as usize,
        );
        // What has names can be a directory, too.
        let named = match self.draw.below(4) {
            0 => self.directory(),
            _ => inode,
        };
        match self.draw.below(31) {
            0..5 => Call::Write {
                inode,
                cell,
                cells,
                value: self.value(),
            },
            5..7 if self
                .cells
                .get(&inode)
                .is_none_or(|known| *known < APPEND_BELOW) =>
            {
                Call::Append {
                    inode,
                    cells,
                    value: self.value(),
                }
            }
            5..8 => Call::Truncate { inode, cells: cell },
            8 => Call::Punch { inode, cell, cells },
            9..14 => Call::Read { inode, cell, cells },
            14..16 => Call::Stat { inode: named },
            16 => Call::Fsync { inode },
            17 => Call::SetMode {
                inode: named,
                mode: 0o600 + self.draw.below(0o100) as u32,
            },
            18 => {
                let value = (self.draw.below(3) > 0).then(|| self.value());
                Call::SetXattr {
                    inode: named,
                    value,
                }
            }
            19 => Call::GetXattr { inode: named },
            20 => Call::Zero { inode, cell, cells },
            21 => Call::Reserve { inode, cell, cells },
            22 => Call::SetOwner {
                inode: named,
                owner: self.value(),
            },
            23..25 => {
                let ahead = self.draw.below(2) as u32 * AHEAD;
                Call::SetTime {
                    inode,
                    time: self.value() | ahead,
                }
            }
            25 => Call::Seek { inode, cell },
            26 => Call::Fsync { inode },
            _ => self.draw_copy(inode, cell, cells),
        }
    }

    /// A copy from a file that nobody changes, or from one that others change meanwhile.
    fn draw_copy(&mut self, inode: InodeId, cell: usize, cells: usize) -> Call {
        let first = self.draw.below(TEMPLATE_CELLS - 2) as usize;
        let source = match self.draw.below(3) {
            0 => self.template,
            _ => self.file(),
        };
        match source {
            Some(source) => Call::Copy {
                from: (source, first),
                inode,
                cell,
                cells,
            },
            None => Call::Stat { inode },
        }
    }
}

/// The file that a client has made and answered itself: no owner has.
fn made_by_client(heard: &Heard, event: usize, call: &Call, answer: &Answer) -> Option<InodeId> {
    let (
        Call::Create {
            directory,
            kind: FileKind::File,
            ..
        },
        Answer::Inode(seen),
    ) = (call, answer)
    else {
        return None;
    };
    let asked = heard.rank(event, Verb::Create, *directory);
    asked.is_none().then_some(seen.inode)
}

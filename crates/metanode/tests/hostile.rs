//! A faulty daemon's requests harm nobody else: whatever it asks, the owner refuses or answers, goes
//! on, and what others have is untouched.

use crate::rig::{self, Rig, pattern};
use bytes::Bytes;
use model::call::Call;
use model::lock::{LockDoor, LockOwner, LockRequest, LockSpace, LockTaker};
use model::operation::{
    Fresh, NewInode, Publish, RangeChange, Ranked, RenameMode, Stamp, Turn, XattrMode,
};
use model::owner::{
    CLASS, HeldToken, LockCall, OWNER, Order, OwnerCall, OwnerReply, OwnerRequest, Reclaimed,
    Streamed, Tenure,
};
use model::token::{GrantNumber, Ship, TokenRequest, TokenReturn};
use model::{
    CommitNumber, DataId, ErrorKind, Extent, ExtentKind, FileKind, FilesetId, GroupId, InodeId,
    InodeNumber, LockKind, LockRange, NodeId, NodeRun, Operation, Result, Scheme, SegmentId,
    SegmentPlace, SessionId, SetAttributes, ShardId, Timestamp, TokenMode, TokenObject, TokenRange,
};
use namespace::sessions::SESSIONS_PER_NODE_MAX;
use std::time::Duration;
use world::Deadline;
use world::call::Service;
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;
const HOSTILE: NodeRun = NodeRun {
    node: NodeId(66),
    incarnation: 1,
};

/// Draws values that lie where rules end. The numbers are Steele, Lea and Flood's SplitMix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// A number that is small, at an end of its range, or anything.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - self.below(4096),
            3 => 1 << self.below(64),
            4 => (1 << self.below(64)) - 1,
            5 => self.next(),
            _ => self.below(10_000),
        }
    }

    fn number32(&mut self) -> u32 {
        self.number() as u32
    }

    fn bytes(&mut self, most: u64) -> Bytes {
        let length = self.below(most + 1) as usize;
        Bytes::from(pattern(self.below(1 << 20), length))
    }

    fn time(&mut self) -> Timestamp {
        Timestamp(self.number() as i64)
    }
}

/// What a faulty daemon knows of the world.
struct Known {
    own: SessionId,
    other: SessionId,
    inodes: Vec<InodeId>,
    places: Vec<SegmentPlace>,
    counter: u64,
}

impl Known {
    fn session(&self, draw: &mut Draw) -> SessionId {
        match draw.below(6) {
            0 => self.other,
            1 => SessionId(draw.number()),
            _ => self.own,
        }
    }

    fn inode(&self, draw: &mut Draw) -> InodeId {
        match draw.one_in(6) {
            // Not one that another made: a node may change all files, as its users may.
            true => InodeId(draw.number() | 1 << 20),
            false => draw.of(&self.inodes),
        }
    }

    fn name(&self, draw: &mut Draw) -> model::FileName {
        let names = ["f", "mine", "d", "x", "yy", "another name"];
        rig::name(draw.of(&names))
    }

    fn segment(&self, draw: &mut Draw) -> SegmentId {
        SegmentId {
            session: self.session(draw),
            counter: match draw.one_in(3) {
                true => draw.number(),
                false => draw.below(20),
            },
        }
    }

    fn place(&self, draw: &mut Draw) -> SegmentPlace {
        let known = draw.of(&self.places);
        if draw.one_in(3) {
            return known;
        }
        let numbers = [0, 1, 2, 4, 16, 32, 200, 255];
        let scheme = match draw.below(3) {
            0 => known.scheme,
            1 => Scheme::Replicate(draw.of(&numbers)),
            _ => Scheme::Erasure {
                k: draw.of(&numbers),
                m: draw.of(&numbers),
            },
        };
        SegmentPlace {
            segment: self.segment(draw),
            group: GroupId(if draw.one_in(2) {
                known.group.0
            } else {
                draw.number32()
            }),
            scheme,
            skipped_slots: if draw.one_in(2) { 0 } else { draw.number32() },
            missing: if draw.one_in(2) { 0 } else { draw.number32() },
            length: draw.number32(),
            crc: draw.number32(),
        }
    }

    fn extent(&self, draw: &mut Draw, offset: u64) -> Extent {
        let offset = if draw.one_in(8) {
            draw.number()
        } else {
            offset
        };
        let bytes = draw.bytes(600);
        let (kind, length) = match draw.below(4) {
            0 => (ExtentKind::Inline(bytes.clone()), bytes.len() as u64),
            1 => (ExtentKind::Reserved, draw.number()),
            _ => {
                let place = self.place(draw);
                let kind = ExtentKind::Data {
                    place,
                    at: if draw.one_in(2) { 0 } else { draw.number32() },
                    codec: draw.below(3) as u8,
                    key_id: draw.below(3) as u32,
                };
                (kind, u64::from(place.length))
            }
        };
        Extent {
            offset,
            length: if draw.one_in(6) {
                draw.number()
            } else {
                length
            },
            kind,
            birth: CommitNumber(draw.number()),
        }
    }

    fn extents(&self, draw: &mut Draw) -> Vec<Extent> {
        let mut offset = draw.below(10_000);
        let mut out = Vec::new();
        for _ in 0..draw.below(6) {
            let extent = self.extent(draw, offset);
            offset = extent.offset.wrapping_add(extent.length);
            out.push(extent);
        }
        out
    }

    fn new_inode(&self, draw: &mut Draw) -> NewInode {
        let kinds = [
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
            FileKind::CharDevice,
        ];
        NewInode {
            kind: draw.of(&kinds),
            mode: draw.number32(),
            umask: draw.number32(),
            uid: draw.number32(),
            gid: draw.number32(),
            rdev: draw.number32(),
            target: draw.bytes(5000),
        }
    }

    fn operation(&self, draw: &mut Draw) -> Operation {
        let inode = self.inode(draw);
        let directory = self.inode(draw);
        let name = self.name(draw);
        match draw.below(27) {
            0 => Operation::Lookup { directory, name },
            1 => Operation::LookupParent { directory },
            2 => Operation::GetAttributes { inode },
            3 => Operation::SetAttributes {
                inode,
                set: SetAttributes {
                    mode: draw.one_in(2).then(|| draw.number32()),
                    uid: draw.one_in(2).then(|| draw.number32()),
                    size: draw.one_in(2).then(|| draw.number()),
                    ..SetAttributes::default()
                },
            },
            4 => Operation::ContinueCut { inode },
            5 => Operation::NoteAccess {
                inode,
                at: draw.time(),
            },
            6 => {
                let new = self.new_inode(draw);
                match draw.one_in(2) {
                    true => Operation::Create {
                        directory,
                        name,
                        new,
                    },
                    false => Operation::CreateHeld {
                        directory,
                        name,
                        new,
                    },
                }
            }
            7 => Operation::CreateUnnamed {
                directory,
                new: self.new_inode(draw),
            },
            8 => Operation::Link {
                inode,
                directory,
                name,
            },
            9 => Operation::ReadLink { inode },
            10 => Operation::ListXattrs { inode },
            11 => Operation::GetUsage { inode },
            12 => Operation::Rename {
                from_directory: directory,
                from_name: name,
                to_directory: self.inode(draw),
                to_name: rig::name("yy"),
                mode: draw.of(&[
                    RenameMode::Replace,
                    RenameMode::NoReplace,
                    RenameMode::Exchange,
                ]),
            },
            13 => Operation::ReadDirectory {
                directory,
                after: draw.number(),
                limit: draw.number32(),
                with_attributes: draw.one_in(2),
            },
            14 => Operation::GetXattr {
                inode,
                name: draw.bytes(300),
            },
            15 => Operation::SetXattr {
                inode,
                name: draw.of(&[
                    Bytes::from_static(b"user.x"),
                    Bytes::from_static(b"system.posix_acl_access"),
                    Bytes::from_static(b"system.posix_acl_default"),
                    Bytes::new(),
                ]),
                value: draw.bytes(70_000),
                mode: draw.of(&[XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
                drop_setgid: draw.one_in(2),
            },
            16 => Operation::RemoveXattr {
                inode,
                name: draw.bytes(20),
            },
            17 => Operation::ReadExtents {
                inode,
                offset: draw.number(),
                length: draw.number(),
                limit: draw.number32(),
            },
            18..=20 => Operation::Publish(Publish {
                inode,
                extents: self.extents(draw),
                size_at_least: draw.number(),
                written: draw.one_in(2).then(|| (draw.time(), draw.number32())),
                replaces: draw.one_in(4).then(|| self.extents(draw)),
            }),
            21 => Operation::ChangeRange {
                inode,
                offset: draw.number(),
                length: draw.number(),
                change: draw.of(&[RangeChange::Punch, RangeChange::Zero, RangeChange::Reserve]),
                keep_size: draw.one_in(2),
            },
            22 => Operation::Share {
                from: inode,
                from_offset: draw.number(),
                to: directory,
                to_offset: draw.number(),
                length: draw.number(),
            },
            23 => Operation::Release { inode },
            24 => Operation::Reserve {
                inode,
                inodes: draw.number32(),
                data: draw.number32(),
            },
            25 => Operation::Reclaim {
                fileset: FilesetId(draw.number32()),
                data: DataId(draw.number()),
            },
            _ => match draw.one_in(2) {
                true => Operation::Condemn {
                    places: (0..draw.below(20)).map(|_| self.place(draw)).collect(),
                },
                false => Operation::ForgetDead {
                    segments: (0..draw.below(20)).map(|_| self.segment(draw)).collect(),
                },
            },
        }
    }

    fn stamp(&mut self, draw: &mut Draw, is_read: bool) -> Stamp {
        self.counter += 1;
        let turn = match draw.below(8) {
            0 => Turn::Own,
            1 => Turn::Read,
            2 => Turn::Stream {
                number: draw.below(300),
                fresh: Fresh {
                    inode: draw.one_in(2).then(|| InodeNumber(draw.number())),
                    data: draw.one_in(2).then(|| DataId(draw.number())),
                },
            },
            3 => Turn::Slot {
                slot: draw.number() as u8,
                number: draw.number(),
            },
            _ if is_read => Turn::Read,
            _ => Turn::Slot {
                slot: draw.below(4) as u8,
                number: self.counter,
            },
        };
        Stamp {
            now: draw.time(),
            latest: draw.time(),
            session: self.session(draw),
            turn,
        }
    }

    /// Mostly what a client may answer before the owner does.
    fn streamed(&self, draw: &mut Draw, number: u64) -> Streamed {
        Streamed {
            number,
            now: draw.time(),
            operation: match draw.one_in(20) {
                true => self.operation(draw),
                false => Operation::CreateHeld {
                    directory: self.inode(draw),
                    name: self.name(draw),
                    new: rig::new_inode(FileKind::File),
                },
            },
            fresh: Fresh {
                inode: Some(InodeNumber(draw.number())),
                data: draw.one_in(2).then(|| DataId(draw.number())),
            },
            with_tokens: draw.one_in(2),
        }
    }

    fn door(&self, draw: &mut Draw) -> LockDoor {
        LockDoor {
            session: self.session(draw),
            number: draw.below(3) as u32,
        }
    }

    fn lock_owner(&self, draw: &mut Draw) -> LockOwner {
        LockOwner {
            door: self.door(draw),
            id: draw.number(),
        }
    }

    fn range(&self, draw: &mut Draw) -> LockRange {
        LockRange {
            start: draw.number(),
            end: draw.number(),
        }
    }

    fn lock(&self, draw: &mut Draw) -> LockRequest {
        LockRequest {
            space: draw.of(&[LockSpace::Whole, LockSpace::Range]),
            inode: self.inode(draw),
            owner: self.lock_owner(draw),
            kind: draw.of(&[None, Some(LockKind::Shared), Some(LockKind::Exclusive)]),
            range: self.range(draw),
            taker: LockTaker {
                open: draw.number(),
                pid: draw.number32(),
                user: draw.below(3) as u32,
            },
        }
    }

    fn token(&self, draw: &mut Draw) -> HeldToken {
        let inode = self.inode(draw);
        let object = draw.of(&[
            TokenObject::Inode(inode),
            TokenObject::Bytes(inode),
            TokenObject::Directory(inode),
        ]);
        let (start, end) = (draw.number(), draw.number());
        HeldToken {
            object,
            range: draw.of(&[TokenRange::ALL, TokenRange { start, end }]),
            mode: draw.of(&[
                TokenMode::Shared,
                TokenMode::SharedWrite,
                TokenMode::Exclusive,
            ]),
        }
    }

    fn request(&mut self, draw: &mut Draw) -> OwnerRequest {
        let inode = self.inode(draw);
        match draw.below(36) {
            30 => {
                let HeldToken {
                    object,
                    range,
                    mode,
                } = self.token(draw);
                OwnerRequest::AskToken {
                    session: self.session(draw),
                    number: draw.number(),
                    wants: TokenRequest {
                        object,
                        mode,
                        required: vec![range],
                        desired: draw.of(&[range, TokenRange::ALL]),
                        ship: draw.of(&[Ship::Never, Ship::IfHeld, Ship::IfContended]),
                    },
                }
            }
            31 => {
                let HeldToken { object, range, .. } = self.token(draw);
                let back = TokenReturn {
                    object,
                    ranges: vec![range],
                    keep: draw.of(&[None, Some(TokenMode::Shared)]),
                    up_to: GrantNumber {
                        tenure: Tenure(draw.number()),
                        count: draw.number(),
                    },
                };
                OwnerRequest::ReturnTokens {
                    session: self.session(draw),
                    back: vec![back; draw.of(&[0, 1, 2, 300])],
                }
            }
            33 => OwnerRequest::AskToKnow {
                session: self.session(draw),
                inodes: vec![InodeId(draw.number()); draw.of(&[0, 1, 2, 300])],
            },
            34 => {
                let (session, first) = (self.session(draw), draw.below(9));
                let operations = 0..draw.of(&[0, 1, 3, 300]);
                OwnerRequest::ExecuteStream {
                    session,
                    operations: operations
                        .map(|at| self.streamed(draw, first + at))
                        .collect(),
                }
            }
            35 => OwnerRequest::UnholdAll {
                inodes: vec![inode; draw.of(&[0, 1, 2, 300])],
                stamp: self.stamp(draw, false),
            },
            32 => OwnerRequest::AwaitRecalls {
                session: self.session(draw),
                known: Tenure(draw.number()),
                has_all: draw.one_in(2),
            },
            0 => OwnerRequest::Sync,
            1 => OwnerRequest::NewSession,
            2 => OwnerRequest::OpenSession {
                session: self.session(draw),
            },
            3 => OwnerRequest::CloseSession {
                session: match draw.one_in(2) {
                    true => self.other,
                    false => SessionId(draw.number()),
                },
            },
            4 => OwnerRequest::Hold {
                session: self.session(draw),
                inode,
            },
            5 => OwnerRequest::Unhold {
                inode,
                stamp: self.stamp(draw, false),
            },
            6 => OwnerRequest::GetUsage,
            7 => OwnerRequest::GiveUp {
                places: (0..draw.below(10)).map(|_| self.place(draw)).collect(),
            },
            8 => OwnerRequest::ReportLowWater {
                session: self.session(draw),
                counter: draw.number(),
            },
            9 => OwnerRequest::MakeRoom,
            10 => OwnerRequest::Reclaim {
                session: self.session(draw),
                part: Reclaimed {
                    attempt: draw.number(),
                    at: draw.number32(),
                    holds: (0..draw.below(5)).map(|_| (inode, draw.number())).collect(),
                    doors: (0..draw.below(3)).map(|_| self.door(draw)).collect(),
                    locks: (0..draw.below(5)).map(|_| self.lock(draw)).collect(),
                    tokens: (0..draw.below(3)).map(|_| self.token(draw)).collect(),
                    under_way: (0..draw.below(3))
                        .map(|_| (draw.below(80) as u8, draw.number()))
                        .collect(),
                },
                is_last: draw.one_in(2),
            },
            11 => OwnerRequest::Lock(LockCall::BeginDoor(self.door(draw))),
            12 => OwnerRequest::Lock(LockCall::EndDoor(self.door(draw))),
            13 => OwnerRequest::Lock(LockCall::Set(self.lock(draw))),
            14 => OwnerRequest::Lock(LockCall::Queue {
                wait: draw.number(),
                request: self.lock(draw),
            }),
            15 => OwnerRequest::Lock(LockCall::Await {
                session: self.session(draw),
                wait: draw.number(),
            }),
            16 => OwnerRequest::Lock(LockCall::EndWait {
                session: self.session(draw),
                wait: draw.number(),
            }),
            17 => OwnerRequest::Lock(LockCall::Test {
                inode,
                owner: self.lock_owner(draw),
                range: self.range(draw),
                kind: LockKind::Exclusive,
            }),
            18 => OwnerRequest::Lock(LockCall::EndProcess {
                inode,
                owner: self.lock_owner(draw),
            }),
            19 => OwnerRequest::Lock(LockCall::EndOpen {
                door: self.door(draw),
                open: draw.number(),
            }),
            _ => {
                let operation = self.operation(draw);
                let stamp = self.stamp(draw, operation.is_read());
                OwnerRequest::Execute { operation, stamp }
            }
        }
    }

    fn call(&mut self, draw: &mut Draw, tenure: Tenure) -> OwnerCall {
        let request = self.request(draw);
        OwnerCall {
            shard: ShardId(0),
            session: self.session(draw),
            tenure: match draw.one_in(10) {
                true => Tenure(draw.number()),
                false => tenure,
            },
            order: request.is_in_order().then(|| Order {
                slot: draw.below(5) as u8,
                number: match draw.one_in(10) {
                    true => draw.number(),
                    false => self.counter,
                },
            }),
            request,
        }
    }
}

async fn serve(rig: &Rig, from: NodeRun, call: &OwnerCall) -> Result<OwnerReply> {
    let deadline = Deadline::after(&rig.world, Duration::from_millis(50));
    let call = Call::new(OWNER, CLASS, call);
    let reply = rig.metanode.serve(from, call, deadline).await;
    reply.decode::<OwnerReply>()
}

async fn ask(
    rig: &Rig,
    from: NodeRun,
    session: SessionId,
    request: OwnerRequest,
) -> Result<OwnerReply> {
    let call = OwnerCall {
        shard: ShardId(0),
        session,
        tenure: rig.metanode.tenure(),
        order: request.is_in_order().then_some(Order {
            slot: 60,
            number: 1,
        }),
        request,
    };
    serve(rig, from, &call).await
}

async fn open_session(rig: &Rig, run: NodeRun) -> SessionId {
    let none = SessionId::default();
    let Ok(OwnerReply::NewSession(session)) = ask(rig, run, none, OwnerRequest::NewSession).await
    else {
        panic!("no session is given out");
    };
    let open = OwnerRequest::OpenSession { session };
    ask(rig, run, none, open).await.unwrap();
    session
}

/// What others have: a file with data, a segment that isn't published yet, a lock, an inode without
/// names.
struct Others {
    file: InodeId,
    held: InodeId,
    unpublished: SegmentPlace,
}

async fn others(rig: &Rig) -> Others {
    let private = rig.make(ROOT, "private", FileKind::Directory).await;
    let directory = private.unwrap().inode;
    let file = rig.file(directory, "kept").await;
    rig.write(file, 0, &pattern(3, 100_000)).await;
    let held = rig.file(directory, "held").await;
    rig.write(held, 0, &pattern(4, 50_000)).await;
    rig.metanode.hold(rig.source.session(), held);
    rig.unlink(directory, "held").await;
    let unpublished = rig.segment(file, 100_000, &pattern(5, 70_000)).await;
    rig.metanode.sync().await.unwrap();
    Others {
        file,
        held,
        unpublished,
    }
}

#[test]
fn whatever_a_faulty_daemon_asks_the_owner_goes_on_and_others_lose_nothing() {
    let seeds = std::env::var("HOSTILE_SEEDS").map_or(40, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        let simulation = Simulation::new(700 + seed);
        simulation
            .run(|world| async move {
                rig::create(&world, Scheme::Replicate(2), 3).await;
                let rig = rig::open(&world).await;
                let kept = others(&rig).await;
                let own = open_session(&rig, HOSTILE).await;
                let directory = rig.make(ROOT, "d", FileKind::Directory).await;
                let directory = directory.unwrap().inode;
                let mine = rig.file(directory, "mine").await;
                rig.write(mine, 0, &pattern(9, 30_000)).await;
                let (extents, _) = rig.extents(kept.file).await;
                let ExtentKind::Data { place, .. } = extents[0].kind else {
                    panic!("the file has a segment")
                };
                let mut known = Known {
                    own,
                    other: rig.source.session(),
                    inodes: vec![directory, mine],
                    places: vec![place, kept.unpublished],
                    counter: 0,
                };
                let mut draw = Draw(seed);
                let mut answered = 0;
                for _ in 0..3_000 {
                    let call = known.call(&mut draw, rig.metanode.tenure());
                    let reply = serve(&rig, HOSTILE, &call).await;
                    answered += usize::from(reply.is_ok());
                    if let Ok(OwnerReply::Operation(Ranked {
                        reply: model::Reply::Entry { attributes, .. },
                        ..
                    })) = reply
                        && known.inodes.len() < 40
                        && attributes.inode != kept.file
                        && attributes.inode != ROOT
                    {
                        known.inodes.push(attributes.inode);
                    }
                }
                assert!(answered > 50, "{answered} requests were answered");
                // Its rounds of background work survive what it published.
                for _ in 0..5 {
                    let _ = rig.metanode.run_background_once().await;
                    world.sleep(Duration::from_secs(3)).await;
                }
                assert_eq!(rig.metanode.counters().takeovers, 0, "seed {seed}");
                assert_eq!(rig.read(kept.file).await.unwrap(), pattern(3, 100_000));
                assert_eq!(rig.read(kept.held).await.unwrap(), pattern(4, 50_000));
                let (bytes, place) = (pattern(5, 70_000), kept.unpublished);
                rig.publish_segment(kept.file, 100_000, &bytes, place).await;
                assert_eq!(rig.read(kept.file).await.unwrap()[100_000..], bytes);
                // Sessions are still given out.
                let next = NodeRun {
                    node: NodeId(67),
                    incarnation: 1,
                };
                let session = open_session(&rig, next).await;
                let close = OwnerRequest::CloseSession { session };
                ask(&rig, next, session, close).await.unwrap();
                rig.metanode.close_session(own).await.unwrap();
            })
            .finished();
    }
}

#[test]
fn a_daemon_does_nothing_in_the_name_of_another_ones_session() {
    Simulation::new(720)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            let kept = others(&rig).await;
            let other = rig.source.session();
            let own = open_session(&rig, HOSTILE).await;
            let requests = [
                OwnerRequest::CloseSession { session: other },
                OwnerRequest::GiveUp {
                    places: vec![kept.unpublished],
                },
                OwnerRequest::ReportLowWater {
                    session: other,
                    counter: u64::MAX,
                },
                OwnerRequest::Unhold {
                    inode: kept.held,
                    stamp: Stamp::own(world.wall(), other),
                },
                OwnerRequest::UnholdAll {
                    inodes: vec![kept.held],
                    stamp: Stamp::own(world.wall(), other),
                },
                OwnerRequest::Lock(LockCall::EndDoor(LockDoor {
                    session: other,
                    number: 0,
                })),
            ];
            for request in requests {
                for session in [own, other] {
                    let refused = ask(&rig, HOSTILE, session, request.clone()).await;
                    let kind = refused.as_ref().map_err(model::Error::kind);
                    assert_eq!(kind, Err(ErrorKind::InvalidArgument), "{request:?}");
                }
            }
            // Nor does it take the owner's own steps.
            let steps = [
                Operation::Condemn {
                    places: vec![kept.unpublished],
                },
                Operation::Release { inode: kept.held },
                Operation::ForgetDead {
                    segments: vec![kept.unpublished.segment],
                },
            ];
            for (at, operation) in steps.into_iter().enumerate() {
                let stamp = Stamp {
                    turn: Turn::Slot {
                        slot: 0,
                        number: at as u64 + 1,
                    },
                    ..Stamp::own(world.wall(), own)
                };
                let step = OwnerRequest::Execute { operation, stamp };
                let refused = ask(&rig, HOSTILE, own, step).await.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
            }
            // A number that nobody gave out would end all sessions below it.
            for session in [SessionId(1 << 40), SessionId(u64::MAX)] {
                let none = SessionId::default();
                for request in [
                    OwnerRequest::OpenSession { session },
                    OwnerRequest::CloseSession { session },
                ] {
                    let refused = ask(&rig, HOSTILE, none, request).await.unwrap_err();
                    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
                }
            }
            assert_eq!(rig.read(kept.held).await.unwrap(), pattern(4, 50_000));
            let (bytes, place) = (pattern(5, 70_000), kept.unpublished);
            rig.publish_segment(kept.file, 100_000, &bytes, place).await;
            assert_eq!(rig.read(kept.file).await.unwrap()[100_000..], bytes);
            rig.close().await;
        })
        .finished();
}

#[test]
fn a_daemon_that_opens_sessions_without_end_takes_none_from_others() {
    Simulation::new(731)
        .run(|world| async move {
            rig::create(&world, Scheme::Replicate(1), 1).await;
            let rig = rig::open(&world).await;
            for _ in 0..SESSIONS_PER_NODE_MAX {
                open_session(&rig, HOSTILE).await;
            }
            let none = SessionId::default();
            let new = ask(&rig, HOSTILE, none, OwnerRequest::NewSession).await;
            let Ok(OwnerReply::NewSession(session)) = new else {
                panic!("no session is given out");
            };
            let open = OwnerRequest::OpenSession { session };
            let refused = ask(&rig, HOSTILE, none, open).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy);
            assert!(refused.to_string().contains("sessions open"), "{refused}");
            rig.metanode.open_session().await.unwrap();
            let other = NodeRun {
                node: NodeId(77),
                ..HOSTILE
            };
            open_session(&rig, other).await;
        })
        .finished();
}

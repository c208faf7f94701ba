//! Tokens of what is listed: who has it alone shares it, and what it looks like comes with them.

use crate::rig::clients::{CLIENT, opened, send};
use crate::rig::{self, Rig};
use futures::future::join;
use model::operation::{Stamp, Turn};
use model::owner::{OwnerReply, OwnerRequest};
use model::token::{Ship, TokenRequest, TokenReturn};
use model::{
    InodeId, Operation, Scheme, SessionId, SetAttributes, TokenMode, TokenObject, TokenRange,
};
use world::sim::Simulation;

const ROOT: InodeId = InodeId::ROOT;

async fn ask(rig: &Rig, session: SessionId, request: OwnerRequest) -> OwnerReply {
    send(rig, CLIENT, session, None, request).await.unwrap()
}

/// Gives a session the attributes of files alone.
async fn have_alone(rig: &Rig, session: SessionId, files: &[InodeId]) {
    for (inode, number) in files.iter().zip(1..) {
        let wants = TokenRequest {
            object: TokenObject::Inode(*inode),
            mode: TokenMode::Exclusive,
            required: vec![TokenRange::ALL],
            desired: TokenRange::ALL,
            ship: Ship::Never,
        };
        let asks = OwnerRequest::AskToken {
            session,
            number,
            wants,
        };
        ask(rig, session, asks).await;
    }
}

/// Would be broken if who has made many files heard of them in as many answers as before, one after the other; or if attributes
/// came with the tokens that were looked at before the grant.
#[test]
fn what_is_listed_is_recalled_with_one_answer_and_comes_as_its_holder_has_left_it() {
    let ended = Simulation::new(63).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let (maker, lister) = (opened(&rig).await, opened(&rig).await);
        let mut files = Vec::new();
        for number in 0..200 {
            files.push(rig.file(ROOT, &format!("f{number}")).await);
        }
        have_alone(&rig, maker, &files).await;
        let changed = files[7];
        let shares = async {
            let asks = OwnerRequest::AwaitRecalls {
                session: maker,
                known: rig.metanode.tenure(),
                has_all: false,
            };
            let heard = ask(&rig, maker, asks).await;
            let OwnerReply::Recalls { recalls, .. } = heard else {
                panic!("{heard:?}");
            };
            assert_eq!(recalls.len(), files.len());
            let set = SetAttributes {
                mode: Some(0o600),
                ..SetAttributes::default()
            };
            let operation = Operation::SetAttributes {
                inode: changed,
                set,
            };
            let stamp = Stamp {
                turn: Turn::Slot { slot: 0, number: 1 },
                ..Stamp::own(rig.world.wall(), maker)
            };
            ask(&rig, maker, OwnerRequest::Execute { operation, stamp }).await;
            let back = recalls.into_iter().map(|recall| TokenReturn {
                object: recall.object,
                ranges: recall.ranges,
                keep: recall.keep,
                up_to: recall.up_to,
            });
            let gives = OwnerRequest::ReturnTokens {
                session: maker,
                back: back.collect(),
            };
            ask(&rig, maker, gives).await;
        };
        let lists = OwnerRequest::AskToKnow {
            session: lister,
            inodes: files.clone(),
        };
        let (known, ()) = join(ask(&rig, lister, lists), shares).await;
        let OwnerReply::Known { inodes, .. } = known else {
            panic!("{known:?}");
        };
        assert_eq!(inodes.len(), files.len());
        for (inode, known) in files.iter().zip(inodes) {
            let shown = known.and_then(|known| known.attributes).unwrap();
            assert_eq!(shown.inode, *inode);
            assert_eq!(shown.mode & 0o777 == 0o600, *inode == changed);
        }
    });
    ended.finished();
}

/// Would be broken if the answer left earlier: a power cut could take back what the lister has seen and told others about.
#[test]
fn what_comes_with_the_tokens_of_what_is_listed_is_durable() {
    let ended = Simulation::new(64).run(|world| async move {
        rig::create(&world, Scheme::Replicate(1), 1).await;
        let rig = rig::open(&world).await;
        let lister = opened(&rig).await;
        let file = rig.file(ROOT, "f").await;
        rig.metanode.sync().await.unwrap();
        // Answered to a client in this process, and in memory only.
        rig.truncate(file, 5).await;
        assert!(!rig.metanode.is_clean());
        let lists = OwnerRequest::AskToKnow {
            session: lister,
            inodes: vec![file],
        };
        let known = ask(&rig, lister, lists).await;
        let OwnerReply::Known { inodes, .. } = known else {
            panic!("{known:?}");
        };
        let shown = inodes[0].and_then(|known| known.attributes).unwrap();
        assert_eq!(shown.size, 5);
        assert!(rig.metanode.is_clean(), "the answer shows it");
    });
    ended.finished();
}

//! Chains of waits: from a program on one node to the disk, lease or lock at the end, whatever is missing in between.

use super::*;
use crate::admin::{BECOMES_FIRST, BECOMES_FIRST_REMEDY, LeaseRest, Wait, WaitPart};
use chains::Item;

const TRACE: &str = "00000000000000aa";

/// A wait of an errand; `from`: the node whose call is served.
fn wait(part: WaitPart, seconds: u64, trace: &str, from: Option<u32>) -> Wait {
    let is_link = !matches!(part, WaitPart::Program | WaitPart::Wait);
    Wait {
        what: "READ of process 7 on inode 0:5".into(),
        cause: "something".into(),
        milliseconds: seconds * 1_000,
        trace: trace.into(),
        from,
        is_link,
        part,
    }
}

fn of_node(node: u32, waits: Vec<Wait>) -> Waits {
    Waits {
        node: Some(node),
        waits,
        lease_milliseconds: Some(5_000),
        manager: Some(1),
        ..Waits::default()
    }
}

fn known(answers: Vec<Waits>, silent: &[u32]) -> Known {
    let named = |node: u32| (node, format!("n{node}"));
    let names = answers
        .iter()
        .filter_map(|it| it.node)
        .chain(silent.iter().copied());
    Known {
        names: names.map(named).collect(),
        silent: silent
            .iter()
            .map(|node| (*node, format!("no answer from n{node} within 2 s")))
            .collect(),
        answers: answers.into_iter().map(|it| (it.node, it)).collect(),
    }
}

fn answer_of(node: u32) -> WaitPart {
    WaitPart::ForAnswer {
        node,
        of: "the owner of the metadata".into(),
    }
}

fn work(work: &str) -> WaitPart {
    WaitPart::Work { work: work.into() }
}

fn for_work(work: &str) -> WaitPart {
    WaitPart::ForWork { work: work.into() }
}

fn call() -> WaitPart {
    WaitPart::Call {
        of: "the owner of the metadata".into(),
    }
}

fn token_of(node: u32) -> WaitPart {
    WaitPart::ForToken {
        inode: "0:5".into(),
        node: Some(node),
        runs_out_milliseconds: 4_200,
    }
}

fn nsd(nsd: u32, node: u32) -> WaitPart {
    WaitPart::ForNsd {
        nsd,
        node: Some(node),
    }
}

/// What is printed, without the ages.
fn printed(known: &Known) -> Vec<String> {
    let chains = Chains::new(known);
    let all = chains.all();
    let shown = all.iter().map(|link| words::shown(&chains, known, link));
    let lines = shown.flat_map(|chain| text_of(known, &chain));
    lines.map(|line| line.split_at(10).1.to_owned()).collect()
}

#[test]
fn a_chain_goes_over_nodes_down_to_the_lease_of_a_silent_holder() {
    // A program on n2 asks the owner n1 for a token that n3 has, which is stopped.
    let asking = "00000000000000bb";
    let of_two = vec![
        wait(WaitPart::Program, 4, TRACE, None),
        wait(for_work("ask 0:5"), 4, TRACE, None),
        wait(work("ask 0:5"), 4, asking, None),
        wait(answer_of(1), 1, asking, None),
    ];
    let of_one = vec![
        wait(call(), 1, asking, Some(2)),
        wait(WaitPart::Wait, 1, asking, Some(2)),
        wait(token_of(3), 3, asking, Some(2)),
    ];
    let mut one = of_node(1, of_one);
    one.leases = vec![LeaseRest {
        node: 3,
        milliseconds: 2_500,
    }];
    let lines = printed(&known(vec![of_node(2, of_two), one], &[3]));
    let expected = [
        "n2: READ of process 7 on inode 0:5",
        "  n2: READ of process 7 on inode 0:5 waits for something",
        "    n2: READ of process 7 on inode 0:5, inode 0:5",
        "      n2: waits for the answer of n1: the owner of the metadata",
        "        n1: works on a call of n2: the owner of the metadata",
        "          n1: READ of process 7 on inode 0:5 waits for something",
        "            n1: waits for inode 0:5 to be given back by n3, whose tokens last 4.2 s still",
        "              n3: no answer from n3 within 2 s",
        "                n1: waits, as the manager, for the lease of n3, which lasts 2.5 s still",
        "                  (nothing: others go on without it then)",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_chain_goes_through_a_recall_down_to_a_disk() {
    // n2 waits for n3 to give an inode back, which stores data for that on NSD 4 of n4.
    let (returning, storing) = ("00000000000000cc", "00000000000000dd");
    let known = known(
        vec![
            of_node(
                2,
                vec![
                    wait(WaitPart::Program, 8, TRACE, None),
                    wait(answer_of(1), 8, TRACE, None),
                ],
            ),
            of_node(
                1,
                vec![
                    wait(call(), 8, TRACE, Some(2)),
                    wait(token_of(3), 8, TRACE, Some(2)),
                ],
            ),
            of_node(
                3,
                vec![
                    wait(work("return 0:5"), 7, returning, None),
                    wait(for_work("store 0:5"), 7, returning, None),
                    // It went into a segment of several small files.
                    wait(work("store"), 6, storing, None),
                    wait(nsd(4, 4), 6, storing, None),
                    wait(answer_of(4), 6, storing, None),
                ],
            ),
            of_node(
                4,
                vec![
                    wait(call(), 6, storing, Some(3)),
                    wait(nsd(4, 4), 6, storing, Some(3)),
                ],
            ),
        ],
        &[],
    );
    let chains = Chains::new(&known);
    let all = chains.all();
    assert_eq!(all.len(), 1, "{all:?}");
    let mut link = &all[0];
    let mut places = Vec::new();
    loop {
        let Item::Wait(at) = link.item else {
            panic!("{link:?}");
        };
        places.push(chains.wait(at).0.unwrap());
        let [next] = &link.links[..] else {
            assert!(link.links.is_empty(), "{link:?}");
            break;
        };
        link = next;
    }
    assert_eq!(places, [2, 2, 1, 1, 3, 3, 3, 3, 4, 4]);
    let lines = printed(&known);
    let disk = lines
        .iter()
        .position(|line| line.ends_with("n4: waits for NSD 4"));
    assert_eq!(disk, Some(9), "{lines:?}");
    assert!(lines[10].contains("on n4") && lines[10].contains("shale nsd remove 4"));
    assert_eq!(lines.len(), 11, "{lines:?}");
}

/// Would be broken if who waits for memory had to name what is stored: whichever is first makes room.
#[test]
fn a_wait_for_anything_to_be_stored_leads_to_all_that_is() {
    let one = |number: u64| format!("{number:016x}");
    let waits = vec![
        wait(WaitPart::Program, 9, TRACE, None),
        wait(for_work("store"), 9, TRACE, None),
        wait(work("store 0:5"), 8, &one(1), None),
        wait(nsd(1, 2), 8, &one(1), None),
        wait(work("store"), 7, &one(2), None),
        wait(nsd(2, 2), 7, &one(2), None),
        wait(work("stream"), 6, &one(3), None),
    ];
    let lines = printed(&known(vec![of_node(2, waits)], &[]));
    let indent = |line: &String| line.find("n2: ").expect("it is a wait");
    let waits = lines.iter().filter(|line| !line.trim().starts_with('('));
    let indents: Vec<usize> = waits.map(indent).collect();
    assert_eq!(indents, [0, 2, 4, 6, 4, 6, 0], "{lines:?}");
}

#[test]
fn waits_for_each_other_are_a_circle_that_is_shown_once() {
    let (first, second) = ("00000000000000cc", "00000000000000dd");
    let side = |node, other, own: &str, others: &str| {
        of_node(
            node,
            vec![
                wait(call(), 3, others, Some(other)),
                wait(for_work("return 0:5"), 3, others, Some(other)),
                wait(work("return 0:5"), 3, own, None),
                wait(answer_of(other), 3, own, None),
            ],
        )
    };
    let lines = printed(&known(
        vec![side(1, 2, first, second), side(2, 1, second, first)],
        &[],
    ));
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert!(lines[8].ends_with("a circle, see above"), "{lines:?}");
    let again = lines.iter().filter(|line| line.contains("circle"));
    assert_eq!(again.count(), 1);
}

#[test]
fn what_is_missing_ends_a_chain_and_hides_no_other() {
    // The node that is called is silent, wasn't asked, has answered meanwhile, or has never heard of it.
    let asking_for = |seconds| {
        of_node(
            2,
            vec![
                wait(WaitPart::Program, 3, TRACE, None),
                wait(answer_of(1), seconds, TRACE, None),
            ],
        )
    };
    let asking = || asking_for(3);
    let silent = printed(&known(vec![asking()], &[1]));
    assert!(
        silent[2].contains("no answer from n1 within 2 s"),
        "{silent:?}"
    );
    assert!(silent[3].contains("shale node list"), "{silent:?}");
    let unasked = printed(&known(vec![asking()], &[]));
    assert!(unasked[2].contains("shale waiters --all"), "{unasked:?}");
    let done = printed(&known(vec![asking_for(1), of_node(1, Vec::new())], &[]));
    assert_eq!(done.len(), 2, "{done:?}");
    let unheard = printed(&known(vec![asking(), of_node(1, Vec::new())], &[]));
    assert_eq!(unheard.len(), 3, "{unheard:?}");
    assert!(
        unheard[2].contains("what n2 sends there is lost on the way"),
        "{unheard:?}"
    );
    // The node that calls is silent: what is done for it begins a chain.
    let served = of_node(
        1,
        vec![
            wait(call(), 2, TRACE, Some(2)),
            wait(call(), 1, TRACE, Some(2)),
            wait(WaitPart::ForCoordination, 1, TRACE, Some(2)),
            wait(WaitPart::Wait, 1, "", None),
        ],
    );
    let lines = printed(&known(vec![served], &[2]));
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines[0].contains("works on a call of n2"), "{lines:?}");
    assert!(lines[1].contains("waits for coordination"), "{lines:?}");
    assert!(lines[3].contains("waits for something"), "{lines:?}");
}

#[test]
fn an_owner_without_a_lease_and_a_shard_without_an_owner_say_why() {
    let for_owner = |node| WaitPart::ForOwner { shard: 0, node };
    let asks = |node| of_node(2, vec![wait(for_owner(node), 5, TRACE, None)]);
    let mut owner = of_node(1, Vec::new());
    owner.lease_milliseconds = Some(0);
    owner.manager = None;
    let lines = printed(&known(vec![asks(Some(1)), owner.clone()], &[]));
    assert!(lines[0].contains("the owner of shard 0, n1"), "{lines:?}");
    assert!(lines[1].contains("n1: it has no lease"), "{lines:?}");
    assert!(lines[2].contains("the cluster has no manager"), "{lines:?}");
    assert!(lines[3].contains("quorum nodes"), "{lines:?}");
    // Its manager is silent.
    owner.manager = Some(3);
    let lines = printed(&known(vec![asks(Some(1)), owner], &[3]));
    assert!(lines[2].contains("no answer from n3"), "{lines:?}");
    let lines = printed(&known(vec![asks(None)], &[]));
    assert!(lines[0].contains("no node serves it"), "{lines:?}");
    // Only the node that asks has none.
    let mut cut_off = asks(Some(1));
    cut_off.lease_milliseconds = Some(0);
    let lines = printed(&known(vec![cut_off, of_node(1, Vec::new())], &[]));
    assert!(lines[0].contains("the owner of shard 0, n1"), "{lines:?}");
    assert!(lines[1].contains("n2: it has no lease"), "{lines:?}");
    assert!(lines[2].contains("quorum nodes"), "{lines:?}");
    // It doesn't serve it yet.
    let waits = vec![
        wait(work("take-over 0"), 4, "00000000000000cc", None),
        wait(WaitPart::Wait, 3, "00000000000000cc", None),
        wait(work("take-over 1"), 4, "00000000000000dd", None),
    ];
    let lines = printed(&known(vec![asks(Some(1)), of_node(1, waits)], &[]));
    assert!(lines[0].contains("the owner of shard 0, n1"), "{lines:?}");
    assert!(lines[1].ends_with("inode 0:5, shard 0"), "{lines:?}");
    assert!(lines[2].contains("waits for something"), "{lines:?}");
    assert!(lines[3].contains("shard 1"), "{lines:?}");
}

#[test]
fn long_chains_and_lists_that_were_cut_off_are_bounded_and_said() {
    // Each work waits for the next one.
    let (count, mut waits) = (500_u64, Vec::new());
    for number in 0..count {
        let (trace, seconds) = (format!("{:016x}", number + 1), 600 - number);
        waits.push(wait(
            work(&format!("ask 0:{number}")),
            seconds,
            &trace,
            None,
        ));
        waits.push(wait(
            for_work(&format!("ask 0:{}", number + 1)),
            seconds,
            &trace,
            None,
        ));
    }
    let known = known(vec![of_node(1, waits)], &[]);
    let chains = Chains::new(&known);
    let all = chains.all();
    let mut longest = 0;
    for chain in &all {
        let (mut link, mut depth) = (chain, 0);
        while let Some(next) = link.links.first() {
            (link, depth) = (next, depth + 1);
        }
        longest = longest.max(depth);
    }
    assert_eq!(longest, 40);
    assert!(
        all.len() >= 10,
        "what wasn't reached isn't lost: {}",
        all.len()
    );
    let lines = printed(&known);
    assert!(lines.iter().any(|line| line.trim() == "and more"));
}

#[test]
fn as_json_each_wait_is_listed_once_and_the_first_has_its_chain() {
    let known = known(
        vec![
            of_node(
                2,
                vec![
                    wait(WaitPart::Program, 8, TRACE, None),
                    wait(WaitPart::Wait, 7, TRACE, None),
                    wait(answer_of(1), 7, TRACE, None),
                ],
            ),
            of_node(1, vec![wait(call(), 7, TRACE, Some(2))]),
        ],
        &[3],
    );
    let json = |node| serde_json::to_value(super::of_node(&known, node)).unwrap();
    let two = json(2);
    let waits = two["answer"].as_array().unwrap();
    assert_eq!(waits.len(), 2, "{two}");
    assert_eq!(waits[0]["milliseconds"], 8_000);
    let chain = &waits[0]["chain"];
    assert_eq!(chain["node"], 2);
    let last = &chain["links"][0]["links"][0]["links"][0];
    assert_eq!(last["node"], 1, "{chain}");
    assert_eq!(last["links"].as_array().map(Vec::len), Some(0));
    assert!(waits[1].get("chain").is_none());
    assert_eq!(json(1)["answer"].as_array().map(Vec::len), Some(0));
    assert_eq!(json(3)["error"], "no answer from n3 within 2 s");
}

/// Would be broken if somebody whose program hangs were told that nothing waits, or were shown what is over at once.
#[test]
fn what_has_waited_for_a_second_is_shown_and_what_waits_for_less_is_counted() {
    let said = |waits: &[u64]| {
        let waits = waits.iter().map(|milliseconds| Wait {
            what: format!("READ of process {milliseconds} on inode 0:5"),
            milliseconds: *milliseconds,
            ..wait(WaitPart::Program, 0, &format!("{milliseconds:016x}"), None)
        });
        in_words(&known(vec![of_node(1, waits.collect())], &[]))
    };
    assert_eq!(said(&[]), ["nothing waits"]);
    let none = "nothing has waited for over 1 s, 2 for less";
    assert_eq!(said(&[999, 5]), [none]);
    let both = said(&[1_000, 999]);
    assert!(both[0].contains("READ of process 1000 on "), "{both:?}");
    assert!(!both.iter().any(|line| line.contains("process 999 ")));
    let rest = both.last().map(String::as_str);
    assert_eq!(rest, Some("1 have waited for less than 1 s"));
}

/// Would be broken if people weren't told what they can do while their node becomes a cluster's.
#[test]
fn a_pause_in_which_a_node_becomes_a_clusters_is_told_with_what_can_be_done() {
    let every = Wait {
        what: "every request of programs".into(),
        cause: format!("{BECOMES_FIRST}: etcd is away"),
        ..wait(WaitPart::Wait, 3, "", None)
    };
    let answer = Waits {
        waits: vec![every],
        ..Waits::default()
    };
    let lines = printed(&known(vec![answer], &[]));
    let waits = "every request of programs waits for the node to become the first one of a cluster";
    let expected = [
        format!("{waits}: etcd is away"),
        format!("  ({BECOMES_FIRST_REMEDY})"),
    ];
    assert_eq!(lines, expected);
}

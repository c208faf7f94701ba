//! Listings with attributes of a client on another node: they bring the tokens of what they show, so that nobody is asked
//! about it until another client changes it.

use crate::delegated::Maker;
use crate::names::{chmod, far, kind_of, make, messages, new_directory};
use crate::rig::way::Way;
use crate::rig::{Node, new_file, run_patient as run};
use client::{Client, OpenFlags, Validity};
use model::operation::{DirectoryEntry, RenameMode};
use model::{ErrorKind, InodeId};
use simkernel::SimKernel;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use testkit::inodes::name;
use world::{Deadline, Task, World};

const ROOT: InodeId = InodeId::ROOT;
const MS: Duration = Duration::from_millis(1);

/// A whole listing with attributes, in parts, as a kernel asks for it.
async fn list(client: &Client, directory: InodeId) -> Vec<(DirectoryEntry, Validity)> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let part = client.read_directory(directory, after, 20, true).await;
        let part = part.unwrap();
        assert_eq!(part.entries.len(), part.valid.len());
        after = part.entries.last().map_or(after, |entry| entry.position);
        all.extend(part.entries.into_iter().zip(part.valid));
        if part.end {
            return all;
        }
    }
}

/// Waits for something that takes no more than some messages.
async fn until(world: &World, mut is_so: impl FnMut() -> bool) {
    let deadline = Deadline::after(world, Duration::from_secs(60));
    while !is_so() {
        assert!(!deadline.has_passed(world), "it never becomes so");
        world.sleep(MS).await;
    }
}

#[test]
fn after_a_listing_with_attributes_nobody_is_asked_about_what_it_shows_until_others_change_it() {
    run(9_380, |world, node| async move {
        let (one, way) = far(&world, &node).await;
        let (two, _) = far(&world, &node).await;
        let directory = make(&node.client, ROOT, "d", new_directory()).await;
        let mut files = Vec::new();
        for number in 0..50 {
            files.push(make(&node.client, directory, &format!("f{number}"), new_file()).await);
        }
        // The token of the directory, the names, and the tokens of the files with what they show.
        let (listed, asked) = messages(&way, list(&one, directory)).await;
        assert_eq!((listed.len(), asked), (50, 3));
        for (entry, valid) in &listed {
            assert!(!valid.name.is_zero() && !valid.attributes.is_zero());
            let shown = entry.attributes.unwrap();
            let look = one.lookup(directory, entry.name.clone());
            let (found, asked) = messages(&way, look).await;
            assert_eq!((found.unwrap(), asked), (shown, 0), "{:?}", entry.name);
        }
        let (again, asked) = messages(&way, list(&one, directory)).await;
        assert_eq!(asked, 0);
        let entries = |all: &[(DirectoryEntry, Validity)]| -> Vec<_> {
            all.iter().map(|(entry, _)| entry.clone()).collect()
        };
        assert_eq!(entries(&again), entries(&listed));

        // Others have what was listed, too, and it is seen at once when one of them changes it.
        assert_eq!(list(&two, directory).await.len(), 50);
        chmod(&two, files[7], 0o600).await.unwrap();
        let mode = async |text: &str| one.lookup(directory, name(text)).await.unwrap().mode & 0o777;
        assert_eq!(mode("f7").await, 0o600);
        let (other, asked) = messages(&way, mode("f8")).await;
        assert_eq!((other, asked), (0o644, 0), "nobody has changed that one");
        let of = |all: &[(DirectoryEntry, Validity)], text: &str| {
            let mut all = all.iter().map(|(entry, _)| entry);
            all.find(|entry| entry.name == name(text)).cloned()
        };
        let listed = list(&one, directory).await;
        let shown = of(&listed, "f7").unwrap().attributes;
        assert!(shown.is_none_or(|shown| shown.mode & 0o777 == 0o600));
        two.unlink(directory, name("f9")).await.unwrap();
        let gone = one.lookup(directory, name("f9")).await;
        assert_eq!(kind_of(gone), ErrorKind::NotFound);
        let listed = list(&one, directory).await;
        assert_eq!((listed.len(), of(&listed, "f9")), (49, None));
        for client in [one, two] {
            client.close().await.unwrap();
        }
        node.close().await;
    });
}

/// Would be broken if who lists what another client has made asked for each file: its maker has it alone until then.
#[test]
fn what_another_client_has_made_alone_is_listed_in_few_messages_and_shared() {
    run(9_382, |world, node| async move {
        let mut maker = Maker::new(&world, &node).await;
        maker.make_some(300).await;
        let (lister, way) = far(&world, &node).await;
        let directory = maker.directory;
        let (listed, asked) = messages(&way, list(&lister, directory)).await;
        // The directory's token, and for each of two parts: the names, and the tokens with what they show.
        assert!(
            listed.len() >= 300 && asked <= 6,
            "{} {asked}",
            listed.len()
        );
        for (entry, valid) in &listed {
            assert!(!valid.name.is_zero() && !valid.attributes.is_zero());
            let look = lister.lookup(directory, entry.name.clone());
            let (found, asked) = messages(&way, look).await;
            assert_eq!((found.unwrap(), asked), (entry.attributes.unwrap(), 0));
            let own = maker.client.get_attributes(entry.inode).await.unwrap();
            assert_eq!(own, entry.attributes.unwrap());
        }
        // Each of them may be the one to change it.
        let (first, last) = (listed[0].0.clone(), listed[299].0.clone());
        for (client, other, entry) in [
            (&maker.client, &lister, &first),
            (&lister, &maker.client, &last),
        ] {
            chmod(client, entry.inode, 0o600).await.unwrap();
            let seen = other.lookup(directory, entry.name.clone()).await.unwrap();
            assert_eq!(seen.mode & 0o777, 0o600);
        }
        maker.client.close().await.unwrap();
        lister.close().await.unwrap();
        node.check_and_close().await;
    });
}

/// Would be broken if what nobody looks at any more kept others from being known: then each look would be sent to the owner.
#[test]
fn who_has_listed_more_files_than_a_client_keeps_goes_on_to_know_what_it_lists() {
    run(9_387, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let large = make(&node.client, ROOT, "large", new_directory()).await;
        for number in 0..36_000 {
            make(&node.client, large, &format!("f{number}"), new_file()).await;
        }
        let small = make(&node.client, ROOT, "small", new_directory()).await;
        for number in 0..100 {
            make(&node.client, small, &format!("f{number}"), new_file()).await;
        }
        assert_eq!(list(&far, large).await.len(), 36_000);
        let known = far.usable().len();
        assert!(known <= 32_768, "{known}");
        // The next look makes room, which takes messages: time stands still here while there are only these.
        far.lookup(ROOT, name("small")).await.unwrap();
        world.sleep(100 * MS).await;
        list(&far, small).await;
        for number in 0..100 {
            let look = far.lookup(small, name(&format!("f{number}")));
            let (found, asked) = messages(&way, look).await;
            assert_eq!((found.unwrap().links, asked), (1, 0));
        }
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if more were asked for ahead than an owner asks others for at a time: the rest would come without attributes.
#[test]
fn what_another_client_has_written_is_listed_with_attributes_also_a_part_ahead() {
    run(9_389, |world, node| async move {
        let (writer, _) = far(&world, &node).await;
        let (lister, _) = far(&world, &node).await;
        let large = make(&node.client, ROOT, "large", new_directory()).await;
        for number in 0..1_300 {
            let file = make(&node.client, large, &format!("f{number}"), new_file()).await;
            writer.write(file, 0, b"x").await.unwrap();
            writer.fsync(file, false).await.unwrap();
        }
        let listed = list(&lister, large).await;
        assert_eq!(listed.len(), 1_300);
        let unknown = listed
            .iter()
            .filter(|(entry, _)| entry.attributes.is_none());
        assert_eq!(unknown.count(), 0);
        for client in [writer, lister] {
            client.close().await.unwrap();
        }
        node.close().await;
    });
}

/// Would be broken if a program waited for each part when it comes to it, or for one that comes without being listed.
#[test]
fn while_a_program_looks_at_a_part_the_next_one_comes() {
    run(9_391, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let large = make(&node.client, ROOT, "large", new_directory()).await;
        for number in 0..4_000 {
            make(&node.client, large, &format!("f{number}"), new_file()).await;
        }
        let part = async |after: u64| {
            let part = far.read_directory(large, after, 256, true).await.unwrap();
            let all = part.valid.iter();
            assert!(all.copied().all(|valid| !valid.attributes.is_zero()));
            (part.entries.len(), part.entries.last().unwrap().position)
        };
        let (_, first) = part(0).await;
        let (_, mut after) = part(first).await;
        // All of it comes that way, but for what the first two parts have.
        for _ in 2..4_000 / 256 {
            until(&world, || far.waiters().is_empty()).await;
            world.sleep(10 * MS).await;
            let ((count, last), asked) = messages(&way, part(after)).await;
            assert_eq!((count, asked), (256, 0));
            after = last;
        }
        // One that takes long is waited for, and seen.
        let slow = make(&node.client, ROOT, "slow", new_directory()).await;
        for number in 0..2_000 {
            make(&node.client, slow, &format!("f{number}"), new_file()).await;
        }
        let part = async |after: u64| {
            let part = far.read_directory(slow, after, 256, true).await.unwrap();
            part.entries.last().unwrap().position
        };
        let after = part(part(0).await).await;
        way.tokens_ms.store(700, Ordering::Relaxed);
        let lists = {
            let far = Arc::clone(&far);
            async move { far.read_directory(slow, after, 256, true).await.unwrap() }
        };
        let lists = world.spawn("a program", lists);
        let is_ahead = |cause: &str| cause.contains("asked for ahead");
        until(&world, || far.waiters().iter().any(|it| is_ahead(it.cause))).await;
        assert_eq!(lists.await.entries.len(), 256);
        way.tokens_ms.store(0, Ordering::Relaxed);
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if parts were asked for ahead of what can't be known: each would be asked for once more, and each part of
/// a program brought another thousand entries.
#[test]
fn a_listing_of_directories_asks_for_nothing_ahead() {
    run(9_388, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let large = make(&node.client, ROOT, "large", new_directory()).await;
        for number in 0..1_000 {
            make(&node.client, large, &format!("d{number}"), new_directory()).await;
        }
        let (listed, asked) = messages(&way, list(&far, large)).await;
        // The token of the directory, and each of 50 parts.
        assert_eq!(listed.len(), 1_000);
        assert!(asked <= 52, "{asked}");
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Files that the owner's node has made, and a program of another one that lists them: the owner has granted their tokens, and
/// its answer is on its way until `listed_late` ends. The program says how many it has listed.
async fn listed_late(
    world: &World,
    node: &Node,
    (far, way): (&Arc<Client>, &Arc<Way>),
    names: &[&str],
) -> (Vec<InodeId>, Task<usize>) {
    let mut files = Vec::new();
    for text in names {
        files.push(make(&node.client, ROOT, text, new_file()).await);
    }
    far.read_directory(ROOT, 0, 100, false).await.unwrap();
    assert!(!far.usable().is_empty(), "the token of the directory");
    way.listed_late.store(true, Ordering::Relaxed);
    let lists = {
        let far = Arc::clone(far);
        async move { list(&far, ROOT).await.len() }
    };
    let lists = world.spawn("a program", lists);
    way.until_late().await;
    (files, lists)
}

/// Would be broken if what an owner granted to a session counted for the one that has followed it: nobody would recall it.
#[test]
fn what_was_granted_to_a_session_that_has_ended_meanwhile_is_not_kept() {
    run(9_385, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let (files, lists) = listed_late(&world, &node, (&far, &way), &["a", "b"]).await;
        way.no_sessions.store(true, Ordering::Relaxed);
        let ended = far.session();
        node.metanode.close_session(ended).await.unwrap();
        until(&world, || far.usable().is_empty()).await;
        way.listed_late.store(false, Ordering::Relaxed);
        // Its answer arrives before the next session begins.
        world.sleep(100 * MS).await;
        way.no_sessions.store(false, Ordering::Relaxed);
        assert_eq!(lists.await, 2);
        until(&world, || far.session() != ended).await;

        // Out of the time in which lost tokens aren't asked for.
        world.sleep(Duration::from_secs(3)).await;
        let mode = async |text: &str| far.lookup(ROOT, name(text)).await.unwrap().mode & 0o777;
        for text in ["a", "b", "a", "b"] {
            assert_eq!(mode(text).await, 0o644);
        }
        for (file, text) in files.into_iter().zip(["a", "b"]) {
            chmod(&node.client, file, 0o600).await.unwrap();
            assert_eq!(mode(text).await, 0o600);
        }
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if attributes that came with their token counted although they have been changed since it was asked for: by
/// this client, whose changes no token keeps away, or by another one, for which the token had gone back.
#[test]
fn what_is_changed_while_the_tokens_of_a_listing_come_is_not_known_as_it_was_before() {
    run(9_399, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        let (files, lists) = listed_late(&world, &node, (&far, &way), &["a", "b", "c"]).await;
        chmod(&far, files[0], 0o600).await.unwrap();
        chmod(&node.client, files[1], 0o600).await.unwrap();
        way.listed_late.store(false, Ordering::Relaxed);
        assert_eq!(lists.await, 3);
        for (text, expected) in [("a", 0o600), ("b", 0o600), ("c", 0o644)] {
            let found = far.lookup(ROOT, name(text)).await.unwrap();
            assert_eq!(found.mode & 0o777, expected, "{text}");
        }
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Would be broken if a listing waited for the tokens of what it shows for as long as the owner's commits take.
#[test]
fn a_listing_waits_for_the_tokens_of_what_it_shows_as_long_as_for_one() {
    run(9_390, |world, node| async move {
        let (far, way) = far(&world, &node).await;
        for text in ["a", "b"] {
            make(&node.client, ROOT, text, new_file()).await;
        }
        way.tokens_ms.store(1_700, Ordering::Relaxed);
        let second = Duration::from_secs(1);
        let mut waited = 0;
        for _ in 0..5 {
            let begun = world.now();
            assert_eq!(list(&far, ROOT).await.len(), 2);
            let took = world.now() - begun;
            assert!(took < second + second / 4, "{took:?}");
            waited += u32::from(took >= second);
            world.sleep(2 * second).await;
        }
        assert_eq!(waited, 2, "for the directory, and for the files");
        // They have come all the same.
        let (_, asked) = messages(&way, list(&far, ROOT)).await;
        assert_eq!(asked, 0);
        far.close().await.unwrap();
        node.close().await;
    });
}

/// Others move and remove a name with its directory's token alone. Would be broken if a kernel went on using the
/// attributes that it was given under the name: it keeps them beside the inode, which a program has open.
#[test]
fn who_has_a_file_open_sees_at_once_that_others_move_and_remove_its_name() {
    run(9_395, |world, node| async move {
        let (one, _) = far(&world, &node).await;
        let (two, _) = far(&world, &node).await;
        let kernel = SimKernel::before(&one);
        let file = make(&node.client, ROOT, "f", new_file()).await;
        make(&node.client, ROOT, "other", new_file()).await;
        one.open(file, OpenFlags::default()).await.unwrap();
        let keeps = async |text: &str| {
            // Out of the time in which tokens that others wanted aren't asked for.
            world.sleep(Duration::from_secs(3)).await;
            assert_eq!(list(&one, ROOT).await.len(), 2);
            kernel.stat(ROOT, &name(text)).await.unwrap();
            let before = kernel.asked.load(Ordering::Relaxed);
            let shown = kernel.stat_open(file).await.unwrap();
            let asked = kernel.asked.load(Ordering::Relaxed) - before;
            assert_eq!(asked, 0, "it keeps the attributes");
            shown
        };
        let before = keeps("f").await;
        let moved = two.rename(ROOT, name("f"), ROOT, name("g"), RenameMode::Replace);
        moved.await.unwrap();
        let shown = kernel.stat_open(file).await.unwrap();
        assert!(shown.ctime > before.ctime, "{shown:?} {before:?}");
        assert_eq!(keeps("g").await, shown);
        two.unlink(ROOT, name("g")).await.unwrap();
        assert_eq!(kernel.stat_open(file).await.unwrap().links, 0);
        one.release(file).await;
        drop(kernel);
        for client in [one, two] {
            client.close().await.unwrap();
        }
        node.close().await;
    });
}

/// With each notice of attributes a kernel forgets all names. Would be broken if it were told of each token that goes back of an
/// inode of which it keeps nothing: what programs look at meanwhile would be asked for again each time.
#[test]
fn a_kernel_that_keeps_nothing_of_a_file_is_not_told_when_its_token_goes_back() {
    run(9_396, |world, node| async move {
        let (one, _) = far(&world, &node).await;
        let (two, _) = far(&world, &node).await;
        let kernel = SimKernel::before(&one);
        let written = make(&node.client, ROOT, "written", new_file()).await;
        for text in ["other", "another"] {
            make(&node.client, ROOT, text, new_file()).await;
        }
        // Sizes and times are everybody's from now on: nothing of it is valid for kernels.
        one.write(written, 0, b"x").await.unwrap();
        assert_eq!(list(&one, ROOT).await.len(), 3);
        let look = async || {
            let before = kernel.asked.load(Ordering::Relaxed);
            kernel.stat(ROOT, &name("other")).await.unwrap();
            kernel.asked.load(Ordering::Relaxed) - before
        };
        assert_eq!(look().await, 1);
        assert_eq!(look().await, 0, "it is kept");
        assert_eq!(two.get_attributes(written).await.unwrap().size, 1);
        assert_eq!(look().await, 0, "it is kept still");

        // It keeps access lists, also that there are none.
        one.write(written, 0, b"y").await.unwrap();
        let list = one.get_xattr(written, b"system.posix_acl_access").await;
        assert_eq!(list.unwrap_err().kind(), ErrorKind::NoSuchAttribute);
        assert_eq!(look().await, 0);
        assert_eq!(two.get_attributes(written).await.unwrap().size, 1);
        assert_eq!(look().await, 1, "it was told, and has forgotten all names");
        drop(kernel);
        for client in [one, two] {
            client.close().await.unwrap();
        }
        node.close().await;
    });
}

//! umount(8), umount(2) and bind mounts: promises hold when an unmount returns.

use crate::fixture::{
    Node, eventually, kill_hard, machine::Machine, mounted_as, must_run, once_idle,
};
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
};

/// Enough rounds to expose a race.
const ROUNDS: usize = 6;

fn refused(node: &Node, arguments: &[&str]) -> String {
    let output = node.run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let status = Command::new(program).args(arguments).status();
    status.unwrap().success()
}

/// A zombie, waiting for its parent, has no open files.
fn is_gone(machine: &Machine, pid: i32) -> bool {
    machine
        .run(&format!("grep -q '^State:.[^ZX]' /proc/{pid}/status"))
        .0
        != 0
}

#[test]
fn what_was_closed_is_durable_when_umount_8_returns_and_the_node_has_ended() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/m");
    // Without options, mount(8) itself writes no line about the mount.
    machine.must("mount -t shale $NODE ~/m");
    for round in 0..ROUNDS {
        let pid = machine.node.pid();
        machine.must(&format!(
            "head -c 3000000 /dev/zero | tr '\\0' '{round}' > ~/m/file{round}; echo {round} > ~/m/small{round}"
        ));
        machine.must("umount ~/m");
        assert!(is_gone(&machine, pid), "round {round}");
        machine.must("mount -t shale $NODE ~/m");
        for earlier in 0..=round {
            machine.must(&format!("grep -x {earlier} ~/m/small{earlier}"));
            let length =
                format!("test $(tr -d -c {earlier} < ~/m/file{earlier} | wc -c) = 3000000");
            machine.must(&length);
        }
    }
    machine.must("umount ~/m");
    let left = machine.must("cat /run/mount/utab");
    assert!(!left.contains("TARGET"), "{left}");
}

#[test]
fn what_the_node_lies_on_can_be_unmounted_next() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/m ~/base && mount --bind ~ ~/base");
    machine.must("$SHALE up --dir ~/base/other --nsd-size 1G && $SHALE down --dir ~/base/other");
    for round in 0..ROUNDS {
        machine.must("mount -t shale ~/base/other ~/m && echo x > ~/m/file");
        machine.must("umount ~/m && umount ~/base && mount --bind ~ ~/base");
        assert!(!machine.is_up(), "round {round}");
    }
}

#[test]
fn what_was_closed_survives_kill_9_right_after_umount_8_of_a_node_that_stays_up() {
    let machine = Machine::with(true, &[]);
    machine.must("$SHALE up --dir $NODE");
    for round in 0..ROUNDS {
        let pid = machine.node.pid();
        machine.must(&format!(
            "head -c 300000 /dev/zero > $NODE/mnt/file{round}; echo {round} > $NODE/mnt/small{round}"
        ));
        machine.must(&format!("umount $NODE/mnt && kill -9 {pid}"));
        // The kernel closes a killed process's files some time later.
        eventually("the killed daemon is gone", || is_gone(&machine, pid));
        machine.must("$SHALE up --dir $NODE");
        for earlier in 0..=round {
            machine.must(&format!("grep -x {earlier} $NODE/mnt/small{earlier}"));
            machine.must(&format!("test $(wc -c < $NODE/mnt/file{earlier}) = 300000"));
        }
    }
    // A lost line is restored: another mount namespace has the same name for the place.
    machine.must("grep -q helper=shale /run/mount/utab && echo > /run/mount/utab");
    eventually("the line in utab is restored", || {
        machine.run("grep -q helper=shale /run/mount/utab").0 == 0
    });
    machine.must("umount -i $NODE/mnt");
    eventually("the line of an ended mount is removed", || {
        machine.run("grep -q TARGET /run/mount/utab").0 != 0
    });
}

#[test]
fn names_with_blanks_newlines_and_backslashes_are_mounted_and_unmounted() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/m");
    for name in ["a b", "tab\there", "new\nline", "back\\040slash", "#hash"] {
        let place = machine.fstab.with_file_name(name);
        fs::create_dir(&place).unwrap();
        let quoted = format!("'{}'", place.to_str().unwrap());
        machine.must(&format!("mount -t shale $NODE {quoted}"));
        machine.must(&format!("echo x > {quoted}/file && umount {quoted}"));
        assert!(
            !machine.is_up(),
            "{name:?}: it ended before umount returned"
        );
    }
}

#[test]
fn bind_mounts_of_a_file_and_of_directories_can_be_unmounted() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/m ~/bound ~/whole && touch ~/file");
    machine.must("mount -t shale $NODE ~/m && echo words > ~/m/docs/text");
    machine.must("mount --bind ~/m/docs/text ~/file && mount --bind ~/m/docs ~/bound");
    machine.must("grep words ~/file ~/bound/text");
    machine.must("umount ~/file && umount ~/bound && ! mountpoint -q ~/bound && ls ~/m/docs/text");
    machine.must("mount --bind ~/m/docs/text ~/file && mount --bind ~/m/docs ~/bound");
    // In each way. None of them affects the mount itself.
    for way in [
        "umount -l",
        "umount -f",
        "$SHALE umount",
        "$SHALE umount --force",
    ] {
        machine.must(&format!("{way} ~/file && {way} ~/bound"));
        machine.must("grep words ~/m/docs/text");
        machine.must("mount --bind ~/m/docs/text ~/file && mount --bind ~/m/docs ~/bound");
    }
    // A bind mount in use is reported as busy.
    let (code, said) = machine.run("cd ~/bound && umount ~/bound");
    assert!(code != 0 && said.contains("busy"), "{said}");
    // Nor does one of them end the others when the mount itself is gone.
    machine.must("umount ~/m && umount -f ~/file && grep words ~/bound/text");
    machine.must("umount ~/bound && mount -t shale $NODE ~/m");
    // A bind mount, of all or of a part, may be the last one left; the node then ends with it.
    for (round, part) in ["", "/docs"].iter().cycle().take(ROUNDS).enumerate() {
        let pid = machine.node.pid();
        machine.must(&format!("mount --bind ~/m{part} ~/whole && umount ~/m"));
        machine.must(&format!("head -c 3000000 /dev/zero > ~/whole/late{round}"));
        assert!(!is_gone(&machine, pid), "it is served where it is bound");
        machine.must("umount ~/whole");
        assert!(
            is_gone(&machine, pid),
            "round {round}: it ended before umount returned"
        );
        machine.must("mount -t shale $NODE ~/m");
        machine.must(&format!("test $(wc -c < ~/m{part}/late{round}) = 3000000"));
    }
    machine.must("umount ~/m");
    let left = machine.must("cat /run/mount/utab");
    assert!(!left.contains("TARGET"), "{left}");
}

#[test]
fn umount_in_a_copied_mount_namespace_ends_the_mount_there_only() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/m && mount -t shale $NODE ~/m && echo x > ~/m/file");
    machine.must(
        "unshare -m --propagation private sh -ec 'umount ~/m; ! mountpoint -q ~/m; test ! -e ~/m/file'",
    );
    machine.must("mountpoint -q ~/m && grep x ~/m/file");
    // Both namespaces share the table, from which the other umount(8) removed the line.
    eventually("the line in utab is restored", || {
        machine.run("grep -q helper=shale /run/mount/utab").0 == 0
    });
    machine.must("umount ~/m");
    assert!(!machine.is_up());
}

#[test]
fn down_refuses_while_a_bind_mount_lives_and_by_force_takes_it_along() {
    let node = Node::new();
    fs::create_dir(node.path("docs")).unwrap();
    fs::write(node.path("docs/text"), "words").unwrap();
    let place = node.place("bound").canonicalize().unwrap();
    let bound = place.to_str().unwrap();
    must_run(
        Path::new("/"),
        "mount",
        &["--bind", node.path("docs").to_str().unwrap(), bound],
    );
    let text = refused(&node, &["down"]);
    assert!(text.contains(bound) && text.contains("--force"), "{text}");
    // Nothing has changed.
    assert_eq!(fs::read(place.join("text")).unwrap(), b"words");
    assert_eq!(fs::read(node.path("docs/text")).unwrap(), b"words");
    // The same if the mount itself is gone.
    node.must(&["umount", node.mnt.to_str().unwrap()]);
    fs::write(place.join("more"), "through the bind mount").unwrap();
    let text = refused(&node, &["down"]);
    assert!(text.contains(bound), "{text}");
    node.must(&["down", "--force"]);
    assert_eq!(mounted_as(&place), None);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    node.must(&["up"]);
    assert_eq!(
        fs::read(node.path("docs/more")).unwrap(),
        b"through the bind mount"
    );
}

#[test]
fn down_tells_of_a_copy_in_another_mount_namespace() {
    let node = Node::new();
    let mut holder = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-c"])
        .arg("grep ' fuse.shale ' /proc/mounts | cut -d' ' -f2 | grep -v -x \"$0\" | xargs -r -n1 umount -n -l; echo ready; exec cat")
        .arg(&node.mnt)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 6];
    holder
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut said)
        .unwrap();
    let text = node.must(&["down"]);
    assert!(text.contains(&format!("process {}", holder.id())), "{text}");
    holder.kill().unwrap();
    holder.wait().unwrap();
}

#[test]
fn what_is_mounted_over_or_in_a_mount_is_named_and_never_unmounted_instead() {
    let node = Node::new();
    fs::create_dir(node.path("inner")).unwrap();
    let (mnt, inner) = (node.mnt.clone(), node.path("inner"));
    let (mnt, inner) = (mnt.to_str().unwrap(), inner.to_str().unwrap());
    for (place, says) in [(inner, inner), (mnt, "something else is mounted over it")] {
        assert!(run("mount", &["-t", "tmpfs", "none", place]));
        let text = refused(&node, &["down"]);
        assert!(text.contains(says), "{text}");
        let shown = mounted_as(Path::new(place)).unwrap();
        assert!(shown.contains("tmpfs"), "{shown}");
        assert!(run("umount", &[place]));
    }
    // A moved mount is found in its new place.
    let moved = node.place("moved").canonicalize().unwrap();
    let here = node.place("here").canonicalize().unwrap();
    let here = here.to_str().unwrap();
    node.must(&["mount", here]);
    // The kernel can't move a mount out of a shared one.
    if run("mount", &["--move", here, moved.to_str().unwrap()]) {
        assert_eq!(
            node.ask(&["status"])["mounts"][1]["path"],
            moved.to_str().unwrap()
        );
        node.must(&["umount", moved.to_str().unwrap()]);
    } else {
        node.must(&["umount", here]);
    }
    let mut file = File::create(node.path("file")).unwrap();
    file.write_all(b"x").unwrap();
    drop(file);
    node.must(&["down"]);
}

/// umount(2) by a program calls no helper: the kernel tells a FUSE daemon only afterwards.
#[test]
fn after_umount_2_everything_is_durable_once_the_node_shows_no_mount() {
    let node = Node::new();
    for round in 0..ROUNDS {
        fs::write(node.path(&format!("file{round}")), vec![7; 200_000]).unwrap();
        let pid = node.pid();
        once_idle("umount", &["-i", node.mnt.to_str().unwrap()]);
        eventually("the node shows no mount", || {
            node.ask(&["status"])["mounts"]
                .as_array()
                .unwrap()
                .is_empty()
        });
        kill_hard(pid);
        node.must(&["up"]);
        let read = fs::read(node.path(&format!("file{round}"))).unwrap();
        assert_eq!(read, vec![7; 200_000]);
    }
}

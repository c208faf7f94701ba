//! mount(8), umount(8), /etc/fstab and systemd. Each test installs the helpers in its own mount
//! namespace, so that the host stays unchanged.

use crate::fixture::{
    Node, eventually, kill_hard,
    machine::{HELPERS, Machine},
    notified::Notified,
    repository, within_a_minute,
};
use std::{fs, path::Path, process::Command};

const WHOLE: &str =
    "{} ~/whole shale defaults,noauto,nofail,_netdev,x-systemd.requires=x.service,noatime 0 0";
const DOCS: &str = "{} ~/docs fuse.shale ro,noauto,subdir=docs 0 0";

#[test]
fn lines_of_fstab_bring_the_node_up_and_umount_ends_it_durably() {
    let machine = Machine::with(true, &[WHOLE, DOCS]);
    machine.must("mkdir ~/whole ~/docs");
    machine.must("mount -T $FSTAB ~/whole");
    assert!(machine.is_up());
    let shown = machine.must("findmnt -n -o SOURCE,FSTYPE,OPTIONS ~/whole");
    assert!(
        shown.contains("fuse.shale") && shown.contains("noatime"),
        "{shown}"
    );
    assert!(
        shown.starts_with(machine.node.dir.to_str().unwrap()),
        "{shown}"
    );
    machine.must("echo words > ~/whole/docs/text");
    // The second line adds a mount to the running node.
    machine.must("mount -T $FSTAB ~/docs && grep words ~/docs/text");
    let (code, said) = machine.run("touch ~/docs/new");
    assert!(code != 0 && said.contains("Read-only"), "{said}");
    machine.must("umount ~/whole");
    assert!(machine.is_up(), "one mount is left");
    machine.must("umount ~/docs");
    assert!(!machine.is_up(), "it ended before umount returned");
    assert!(
        fs::read_dir(machine.fstab.with_file_name("docs"))
            .unwrap()
            .next()
            .is_none()
    );
    // Then it starts over.
    machine.must("mount -T $FSTAB ~/docs && grep words ~/docs/text && umount ~/docs");
    machine.node.must(&["up"]);
    assert_eq!(
        fs::read_to_string(machine.node.path("docs/text")).unwrap(),
        "words\n"
    );
}

#[test]
fn mount_a_mounts_all_lines_and_only_once() {
    let lines = [
        "{} ~/whole shale defaults 0 0",
        "{} ~/docs fuse.shale ro,subdir=docs 0 0",
    ];
    let machine = Machine::with(true, &lines);
    machine.must("mkdir ~/whole ~/docs && mount -a -T $FSTAB");
    machine.must("mount -a -T $FSTAB");
    let shown = machine.must("findmnt -n -l -t fuse.shale -o TARGET");
    let ours = shown
        .lines()
        .filter(|line| line.ends_with("/whole") || line.ends_with("/docs"));
    assert_eq!(ours.count(), 2, "{shown}");
    // A killed daemon's mounts cause no trouble.
    kill_hard(machine.node.pid());
    machine.must("umount ~/whole; mount -T $FSTAB ~/whole && ls ~/whole/docs");
    machine.must("umount ~/whole");
    assert!(!machine.is_up());
}

#[test]
fn a_node_that_mount_brought_up_ends_with_its_last_mount_also_without_a_helper() {
    let machine = Machine::with(false, &[WHOLE]);
    machine.must("mkdir ~/whole && mount -T $FSTAB ~/whole && echo x > ~/whole/file");
    machine.must("umount ~/whole");
    eventually("the daemon ended", || !machine.is_up());
    machine.node.must(&["up"]);
    assert_eq!(
        fs::read_to_string(machine.node.path("file")).unwrap(),
        "x\n"
    );
    // A node started by `up` stays when mount(8) has added and removed a mount.
    machine.node.must(&["down"]);
    machine.must("$SHALE up --dir $NODE && mount -T $FSTAB ~/whole && umount ~/whole");
    machine.node.must(&["status"]);
}

#[test]
fn forced_and_lazy_umount_go_past_a_daemon_that_is_stopped() {
    let machine = Machine::with(true, &[WHOLE]);
    machine.must("mkdir ~/whole");
    for flag in ["-f", "-l"] {
        machine.must("mount -T $FSTAB ~/whole && echo x > ~/whole/file && sync ~/whole/file");
        let pid = machine.node.pid();
        machine.must(&format!("kill -STOP {pid}"));
        let (code, said) = machine.run("umount ~/whole");
        assert!(code != 0 && said.contains("shale down --kill"), "{said}");
        machine.must(&format!("umount {flag} ~/whole"));
        machine.must("$SHALE down --kill --dir $NODE");
    }
    machine.must("mount -T $FSTAB ~/whole && grep x ~/whole/file && umount ~/whole");
}

#[test]
fn the_helper_answers_with_the_exit_codes_of_mount_8() {
    let machine = Machine::with(true, &[]);
    machine.must("mkdir ~/whole");
    for (command, expected, says) in [
        ("mount.shale", 1, "usage"),
        ("mount.shale $NODE ~/whole -q", 1, "-q"),
        (
            "mount.shale $NODE ~/whole -o zip",
            32,
            "there is no mount option",
        ),
        (
            "mount.shale $NODE ~/whole -s -o zip && umount ~/whole",
            0,
            "",
        ),
        (
            "mount.shale -f $NODE ~/whole && ! mountpoint -q ~/whole",
            0,
            "",
        ),
        ("mount -t shale ~/nothing ~/whole", 32, "no Shale node"),
        ("mount -t shale $NODE ~/nowhere", 32, "nowhere"),
        (
            "mount -t shale -o subdir=nix $NODE ~/whole",
            32,
            "no \"nix\"",
        ),
        ("mount.shale $NODE ~/nowhere", 32, "mkdir -p"),
        ("umount.fuse.shale ~/whole", 32, "no Shale file system"),
        ("mount -t shale -o remount,rw $NODE ~/whole", 32, ""),
    ] {
        let (code, said) = machine.run(&format!("PATH=/usr/sbin:$PATH; {command}"));
        assert_eq!(code, expected, "{command}: {said}");
        assert!(said.contains(says), "{command}: {said}");
    }
    eventually("a node without mounts ended", || !machine.is_up());
}

/// `make install` into a directory.
fn install(into: &Path) {
    let made = Command::new("make")
        .arg("-C")
        .arg(repository())
        .arg("install")
        .arg(format!("SHALE={}", env!("CARGO_BIN_EXE_shale")))
        .arg(format!("PREFIX={}", into.join("usr").display()))
        .arg(format!("SBINDIR={}", into.join("sbin").display()))
        .arg(format!("UNITDIR={}", into.join("units").display()))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn make_install_installs_the_program_the_helpers_and_units_that_systemd_accepts() {
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    install(home.path());
    for name in HELPERS {
        let (code, said) = within_a_minute(&mut Command::new(home.path().join("sbin").join(name)));
        assert_eq!(code, 1, "{name}: {said}");
        assert!(said.contains("usage"), "{name}: {said}");
    }
    for (kind, unit) in [("--system", "system"), ("--user", "user")] {
        let unit = home.path().join("units").join(unit).join("shale@.service");
        let (code, said) = within_a_minute(
            Command::new("systemd-analyze")
                .args([kind, "verify", "--man=no"])
                .arg(&unit)
                .env("XDG_RUNTIME_DIR", home.path()),
        );
        assert!(code == 0 && !said.contains("shale@"), "{code}: {said}");
    }
}

#[test]
fn the_daemon_tells_systemd_when_it_serves_and_when_it_ends() {
    let node = Node::new();
    node.must(&["down"]);
    let mut told = Notified::start(&node);
    assert_eq!(told.hear(), "READY=1");
    fs::write(node.path("file"), "at once").unwrap();
    // What systemd does if `shale down` was refused, for example because the mount is in use.
    let open = fs::File::open(node.path("file")).unwrap();
    assert!(!node.run(&["down"]).status.success());
    let pid = told.daemon.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(told.hear(), "STOPPING=1");
    assert!(told.daemon.wait().unwrap().success());
    drop(open);
    node.must(&["up"]);
    assert_eq!(fs::read_to_string(node.path("file")).unwrap(), "at once");
}

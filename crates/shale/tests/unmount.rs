//! Ending mounts in use, and daemons that don't answer: nothing hangs, and synced data survives.

use crate::fixture::{Node, eventually, mounted_as, poll, signals::signal, within_a_minute};
use rustix::process::Signal;
use std::{
    fs::{self, File},
    io::{Read, Write},
    process::{Child, Command, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Programs that use a mount: a writer, a reader, one that makes and removes names, and one with an
/// open file. They end at their first error or when told to. They aren't threads of the test:
/// closing a file waits for its daemon, which may be stopped, and programs started by the test
/// would close inherited files before they run.
struct Load {
    programs: Vec<Child>,
    stop: tempfile::TempDir,
}

impl Load {
    fn on(node: &Node) -> Self {
        let stop = tempfile::tempdir().unwrap();
        let work = [
            "head -c 300000 /dev/zero > \"$0/written\"",
            "cat \"$0/synced\" > /dev/null",
            // An interrupted round leaves the name behind.
            "{ mkdir \"$0/name\" || test -d \"$0/name\"; } && rmdir \"$0/name\"",
        ];
        let mut scripts: Vec<_> = work
            .iter()
            .map(|work| {
                format!("{work} && echo begun && while test ! -e \"$1/now\" && {work}; do :; done")
            })
            .collect();
        // Until its input ends.
        scripts.push("exec 3< \"$0/synced\" && echo begun && read -r _".into());
        let mut programs: Vec<_> = scripts
            .iter()
            .map(|script| {
                Command::new("sh")
                    .args(["-c", script])
                    .arg(&node.mnt)
                    .arg(stop.path())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let (started, begun) = mpsc::channel();
        for program in &mut programs {
            let (mut says, started) = (program.stdout.take().unwrap(), started.clone());
            std::thread::spawn(move || {
                let mut said = [0; 6];
                // The receiver has given up if it took too long.
                let _ = started.send(says.read_exact(&mut said).map(|()| said));
            });
        }
        for _ in &programs {
            let said = begun.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(&said.unwrap(), b"begun\n");
        }
        Self { programs, stop }
    }

    /// Stops all programs; none may be stuck in the file system.
    fn end(mut self) {
        fs::write(self.stop.path().join("now"), "").unwrap();
        for program in &mut self.programs {
            drop(program.stdin.take());
            poll::eventually(
                "every program comes back from the file system",
                Duration::from_secs(60),
                || program.try_wait().unwrap().is_some(),
            );
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for program in &mut self.programs {
            // Only after a failed test; otherwise they have ended.
            let _ = program.kill();
        }
    }
}

fn with_a_synced_file() -> Node {
    let node = Node::new();
    let mut file = File::create(node.path("synced")).unwrap();
    file.write_all(b"safe").unwrap();
    file.sync_all().unwrap();
    node
}

fn shale(node: &Node, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shale"));
    within_a_minute(command.args(arguments).arg("--dir").arg(&node.dir))
}

/// The node comes up normally, and synced data has survived.
fn starts_again(node: &Node) {
    node.must(&["up"]);
    assert_eq!(fs::read(node.path("synced")).unwrap(), b"safe");
    fs::write(node.path("works"), "again").unwrap();
    node.check();
}

#[test]
fn down_force_ends_a_mount_that_is_written_to() {
    let node = with_a_synced_file();
    let load = Load::on(&node);
    let (code, said) = shale(&node, &["down", "--force"]);
    assert_eq!(code, 0, "{said}");
    load.end();
    starts_again(&node);
}

#[test]
fn each_way_to_unmount_by_force_or_lazily_ends_while_programs_work() {
    let node = with_a_synced_file();
    let mnt = node.mnt.to_str().unwrap().to_string();
    let ways: [&[&str]; 6] = [
        &["umount", "-f"],
        &["umount", "-l"],
        &["fusermount3", "-uz"],
        &["shale", "umount", "--force"],
        &["shale", "umount", "--lazy"],
        &["umount", "-f", "-l"],
    ];
    for way in ways {
        let load = Load::on(&node);
        let program = match way[0] {
            "shale" => env!("CARGO_BIN_EXE_shale"),
            other => other,
        };
        let (code, said) = within_a_minute(Command::new(program).args(&way[1..]).arg(&mnt));
        // `umount -f` fails the programs' operations and reports "busy" while files are open.
        if code != 0 {
            assert!(
                way == ["umount", "-f"] && said.contains("busy"),
                "{way:?}: {said}"
            );
            let (code, said) = within_a_minute(Command::new("umount").args(["-l", &mnt]));
            assert_eq!(code, 0, "{said}");
        }
        assert_eq!(mounted_as(&node.mnt), None, "{way:?}");
        load.end();
        starts_again(&node);
    }
}

#[test]
fn a_lazily_unmounted_file_is_served_to_its_last_user_and_down_says_so() {
    let node = with_a_synced_file();
    let mut open = File::create(node.path("open")).unwrap();
    node.must(&["umount", "--lazy", node.mnt.to_str().unwrap()]);
    open.write_all(b"still works").unwrap();
    assert_eq!(node.ask(&["status"])["mounts"][0]["state"], "detached");
    assert_eq!(node.ask(&["health"])["state"], "degraded");
    let (code, said) = shale(&node, &["down"]);
    assert_eq!(code, 1);
    assert!(said.contains("--force"), "{said}");
    node.must(&["up"]);
    assert_eq!(fs::read(node.path("open")).unwrap(), b"still works");
    drop(open);
    eventually("the old mount is gone", || {
        node.ask(&["status"])["mounts"].as_array().unwrap().len() == 1
    });
    node.must(&["down"]);
    starts_again(&node);
}

#[test]
fn a_busy_unmount_lists_the_processes_that_use_the_mount() {
    let node = with_a_synced_file();
    let mut user = Command::new("sleep")
        .arg("1000")
        .current_dir(&node.mnt)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let place = node.mnt.to_str().unwrap();
    for arguments in [&["down"][..], &["umount", place]] {
        let (code, said) = shale(&node, arguments);
        assert_eq!(code, 1);
        let named = format!("sleep (process {})", user.id());
        assert!(
            said.contains(&named) && said.contains("fuser -vm"),
            "{said}"
        );
    }
    user.kill().unwrap();
    user.wait().unwrap();
    node.must(&["down"]);
}

#[test]
fn commands_to_a_stopped_daemon_end_and_say_what_to_do() {
    let node = with_a_synced_file();
    let pid = node.pid();
    signal(pid, Signal::STOP);
    for arguments in [
        &["down"][..],
        &["down", "--force"],
        &["status"],
        &["up"],
        &["umount", node.mnt.to_str().unwrap()],
        &["fs", "sync"],
    ] {
        let (code, said) = shale(&node, arguments);
        assert_eq!(code, 1, "{arguments:?}: {said}");
        assert!(
            said.contains(&format!("kill -CONT {pid}")) && said.contains("shale down --kill"),
            "{arguments:?}: {said}"
        );
    }
    signal(pid, Signal::CONT);
    node.must(&["status"]);
    signal(pid, Signal::STOP);
    let (code, said) = shale(&node, &["down", "--kill"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(mounted_as(&node.mnt), None);
    starts_again(&node);
}

#[test]
fn the_mount_of_a_stopped_daemon_can_be_ended_in_each_way() {
    let ways: [&[&str]; 4] = [
        &["umount", "-f"],
        &["umount", "-l"],
        &["fusermount3", "-uz"],
        &["shale", "umount", "--force"],
    ];
    let node = with_a_synced_file();
    let mnt = node.mnt.to_str().unwrap().to_string();
    for way in ways {
        let load = Load::on(&node);
        let pid = node.pid();
        signal(pid, Signal::STOP);
        let program = match way[0] {
            "shale" => env!("CARGO_BIN_EXE_shale"),
            other => other,
        };
        let (code, said) = within_a_minute(Command::new(program).args(&way[1..]).arg(&mnt));
        assert!(code == 0 || said.contains("busy"), "{way:?}: {said}");
        let (code, said) = shale(&node, &["down", "--kill"]);
        assert_eq!(code, 0, "{way:?}: {said}");
        load.end();
        assert_eq!(mounted_as(&node.mnt), None);
        starts_again(&node);
    }
}

#[test]
fn a_process_that_opens_files_only_briefly_does_not_keep_a_mount_from_ending() {
    let node = Node::new();
    fs::write(node.path("file"), "content").unwrap();
    for _ in 0..5 {
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It has the file open a good part of the time, but never for long.
                while !has_ended.load(Ordering::SeqCst) {
                    let _ = fs::read(node.path("file"));
                    for _ in 0..20 {
                        fs::read("/proc/self/stat").unwrap();
                    }
                }
            });
            let down = node.run(&["down"]);
            has_ended.store(true, Ordering::SeqCst);
            let said = String::from_utf8_lossy(&down.stderr);
            assert!(down.status.success(), "{said}");
        });
        node.must(&["up"]);
    }
}

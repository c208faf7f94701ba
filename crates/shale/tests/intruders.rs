//! Other users of the machine must not be able to harm a node, whatever the umask of the user who
//! started it, and whatever files they plant.

use crate::fixture::{Node, bounded, within_a_minute};
use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// An ordinary user without a name.
const OTHER: u32 = 54_321;
/// More than the daemon serves at once.
const CONNECTIONS: usize = 300;

/// Runs a command with the most permissive umask.
fn with_umask_0(node: &Node, arguments: &str) {
    let mut shell = Command::new("sh");
    shell
        .args([
            "-c",
            &format!("umask 0; exec \"$SHALE\" {arguments} --dir \"$DIR\""),
        ])
        .env("SHALE", env!("CARGO_BIN_EXE_shale"))
        .env("DIR", &node.dir);
    let (code, said) = within_a_minute(&mut shell);
    assert_eq!(code, 0, "{arguments}: {said}");
}

/// All paths in a directory with their rights, except those in the mount. What ends meanwhile is left out.
pub(crate) fn all_below(directory: &Path, mnt: &Path) -> Vec<(PathBuf, u32)> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut all = Vec::new();
    for path in paths.filter(|path| path != mnt) {
        let Ok(found) = path.symlink_metadata() else {
            continue;
        };
        if found.is_dir() {
            all.extend(all_below(&path, mnt));
        }
        all.push((path, found.mode() & 0o7777));
    }
    all
}

fn rights(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn whatever_the_umask_other_users_cannot_touch_the_files_of_a_node() {
    let node = Node::unstarted();
    with_umask_0(&node, "up --nsd-size 4G");
    with_umask_0(&node, "nsd add");
    with_umask_0(&node, "nsd list");
    let all = all_below(&node.dir, &node.mnt);
    let names = [
        "daemon.sock",
        "daemon.lock",
        "daemon.log",
        "node.toml",
        "2.region",
    ];
    for name in names {
        let has = all.iter().any(|(path, _)| path.ends_with(name));
        assert!(has, "{name}: {all:?}");
    }
    for (path, rights) in &all {
        assert_eq!(rights & 0o077, 0, "{}", path.display());
    }
    // Others can pass through to the mount, and see nothing on the way.
    assert_eq!(rights(&node.dir), 0o711);
    assert_eq!(rights(&node.mnt), 0o755);
    node.must(&["down"]);
    // With the mount elsewhere, others need nothing there. The directories above a mount are
    // public.
    let apart = Node::unstarted();
    let place = apart.dir.with_file_name("way").join("to/mnt");
    with_umask_0(
        &apart,
        &format!("up --nsd-size 4G --mount {}", place.display()),
    );
    assert_eq!(rights(&apart.dir), 0o700);
    assert_eq!(rights(place.parent().unwrap()), 0o755);
}

/// Sends a request as another user: only this thread becomes that user.
fn ask_as_other(socket: PathBuf, request: &'static str) -> String {
    let asked = std::thread::spawn(move || {
        // SAFETY: the bare system call changes the calling thread only, which ends here.
        let became = unsafe { libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER) };
        assert_eq!(became, 0);
        let mut stream = UnixStream::connect(socket).expect("its mode lets everyone connect");
        // The daemon may have closed it already.
        let _ = stream.write_all(request.as_bytes());
        rest_of(&mut stream)
    });
    String::from_utf8(asked.join().unwrap()).unwrap()
}

#[test]
fn another_user_commands_nothing_even_if_the_rights_of_the_socket_are_gone() {
    let node = Node::new();
    let socket = node.dir.join("daemon.sock");
    assert_eq!(rights(&socket), 0o600);
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let home = node.dir.parent().unwrap();
    fs::set_permissions(home, Permissions::from_mode(0o711)).unwrap();
    let pid = node.pid();
    for request in [
        "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST /v1/shutdown HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{\"force\":true}",
    ] {
        assert_eq!(ask_as_other(socket.clone(), request), "");
    }
    assert_eq!(node.pid(), pid);
    let log = fs::read_to_string(node.dir.join("daemon.log")).unwrap();
    assert!(log.contains(&format!("user={OTHER}")), "{log}");
    bounded::must_be_sound(&node);
}

#[test]
fn what_is_planted_in_place_of_log_lock_and_socket_is_not_followed() {
    let node = Node::new();
    node.must(&["down"]);
    let precious = node.place("other").join("precious");
    fs::write(&precious, "words").unwrap();
    for name in ["daemon.log", "daemon.lock", "node.toml"] {
        let (path, kept) = (node.dir.join(name), node.dir.join("kept"));
        fs::rename(&path, &kept).unwrap();
        for is_fifo in [false, true] {
            if is_fifo {
                let made = Command::new("mkfifo").arg(&path).status();
                assert!(made.unwrap().success());
            } else {
                symlink(&precious, &path).unwrap();
            }
            let ended = bounded::shale(&node, &["up"]);
            ended.refused_with(&["a regular file", name]);
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&kept, &path).unwrap();
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), "words");
    // The socket is made anew, whatever has its name.
    symlink(&precious, node.dir.join("daemon.sock")).unwrap();
    node.must(&["up"]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "words");
}

#[test]
fn a_directory_in_which_others_may_write_is_refused() {
    let node = Node::new();
    node.must(&["down"]);
    fs::set_permissions(&node.dir, Permissions::from_mode(0o775)).unwrap();
    bounded::shale(&node, &["up"]).refused_with(&["chmod go-w"]);
    fs::set_permissions(&node.dir, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&node.dir, Some(OTHER), None).unwrap();
    bounded::shale(&node, &["up"]).refused_with(&["belongs to user 54321"]);
    std::os::unix::fs::chown(&node.dir, Some(0), None).unwrap();
    node.must(&["up"]);
}

/// Reads until the peer closes; at most a minute.
fn rest_of(stream: &mut UnixStream) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        // The daemon closed it with data unread.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        read => {
            read.expect("the daemon closes it");
        }
    }
    all
}

#[test]
fn a_client_that_sends_nothing_or_too_much_is_disconnected() {
    let node = Node::new();
    let connect = || UnixStream::connect(node.dir.join("daemon.sock")).unwrap();
    let mut silent: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    for stream in &mut silent {
        rest_of(stream);
    }
    bounded::must_be_sound(&node);
    // Requests that start and then stall, in the head and in the body.
    for begun in [
        "POST /v1/fs/sync HTTP/1.1\r\nhost: shale\r\n",
        "POST /v1/shutdown HTTP/1.1\r\nhost: shale\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{",
    ] {
        let mut stream = connect();
        stream.write_all(begun.as_bytes()).unwrap();
        rest_of(&mut stream);
    }
    // Endless requests.
    let heads = [
        "POST /v1/mount HTTP/1.1\r\nhost: shale\r\nx: ",
        "POST /v1/mount HTTP/1.1\r\nhost: shale\r\ncontent-type: application/json\r\ncontent-length: 1000000000\r\n\r\n",
    ];
    for head in heads {
        let mut stream = connect();
        stream.write_all(head.as_bytes()).unwrap();
        // Writes until the daemon stops reading.
        let endless = vec![b'x'; 1 << 16];
        stream
            .set_write_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let written = (0..1_000).take_while(|_| stream.write_all(&endless).is_ok());
        assert!(written.count() < 1_000, "64 MB of nothing were taken");
    }
    bounded::must_be_sound(&node);
}

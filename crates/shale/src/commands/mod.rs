//! One function per command.

mod ask;
mod cluster;
mod create;
mod down;
pub mod fstab;
mod join;
mod lab;
mod members;
mod mount;
mod present;
mod progress;
mod repair;
mod shell;
mod start;
mod stop;
mod up;
mod wait;
mod waiters;

use crate::cli::{Cli, Command, Fs, Umount};
use model::Error;
use std::process::ExitCode;

/// Runs the command. An error comes with whether to print it as JSON.
pub fn run(cli: Cli) -> Result<ExitCode, (Error, bool)> {
    let json = cli.json;
    let result = match cli.command {
        Command::Up(up) => up::up(&up, json),
        Command::Down(down) => down::down(&down, json),
        Command::Mount(mount) => mount::mount(&mount, json),
        Command::Umount(umount) => mount::umount(&umount, json),
        Command::Daemon { dir, on_demand } => crate::daemon::run(&dir.dir, on_demand),
        Command::Watchdog { dir } => crate::daemon::watch_over(&dir.dir),
        Command::Fs(Fs::Mount {
            dir,
            name,
            mountpoint,
            options,
        }) => mount::mount_named(&dir, &name, &mountpoint, &options, json),
        Command::Fs(Fs::Unmount { dir, mountpoint }) => {
            let umount = Umount {
                dir: Some(dir.absolute()),
                mountpoint,
                lazy: false,
                force: false,
            };
            mount::umount(&umount, json)
        }
        Command::Cluster(command) => cluster::cluster(command, json),
        Command::Node(command) => cluster::node(command, json),
        Command::Lab(command) => lab::lab(&command, json),
        Command::Completion { shell } => shell::completion(shell),
        Command::Man { out } => shell::manual(&out),
        other => ask::ask(other, json),
    };
    result.map_err(|error| (error, json))
}

//! Commands that send one request to the running daemon and print its answer.

use super::{
    present::{
        check, df, health, nsds, pool, present, present_last, repair, scrub, status, waiters,
    },
    progress::ask_showing,
    start::block_on,
    wait,
};
use crate::{
    admin::{AddNsd, ChangeNsds, ChangePool, client::Admin},
    cli::{Command, Dir, Fs, Nsd, Pool, Repair},
    output::{self, say},
};
use hyper::Method;
use model::Result;
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;

/// Sends the command's request. The exit code is 1 if the answer reports a problem.
pub fn ask(command: Command, json: bool) -> Result<ExitCode> {
    block_on(async {
        match command {
            Command::Status(dir) => show(&dir, Method::GET, "/v1/status", (), json, status).await,
            Command::Health(dir) => show(&dir, Method::GET, "/v1/health", (), json, health).await,
            Command::Waiters(dir) => {
                show(&dir, Method::GET, "/v1/waiters", (), json, waiters).await
            }
            Command::Fs(Fs::Df(dir)) => show(&dir, Method::GET, "/v1/fs/df", (), json, df).await,
            Command::Fs(Fs::Check { dir, deep }) => {
                let path = match deep {
                    true => "/v1/fs/check?deep=true",
                    false => "/v1/fs/check",
                };
                let ends = "the check ended with this command; it has changed nothing";
                let admin = Admin::of(&dir.absolute());
                let answer = ask_showing(&admin, path, json, ends).await?;
                present_last(answer, json, check)
            }
            Command::Fs(Fs::Sync(dir)) => {
                show(
                    &dir,
                    Method::POST,
                    "/v1/fs/sync",
                    (),
                    json,
                    |_: &serde_json::Value| {
                        say!("everything is durable");
                        ExitCode::SUCCESS
                    },
                )
                .await
            }
            Command::Nsd(nsd) => ask_nsd(nsd, json).await,
            Command::Pool(Pool::List(dir)) => {
                show(&dir, Method::GET, "/v1/pool", (), json, pool).await
            }
            Command::Pool(Pool::Change {
                dir,
                scheme,
                block_size,
            }) => {
                let change = ChangePool {
                    scheme,
                    block_bytes: block_size,
                };
                show(&dir, Method::POST, "/v1/pool", change, json, pool).await
            }
            Command::Repair(Repair::Status { dir, wait: false }) => {
                show(&dir, Method::GET, "/v1/repair", (), json, repair).await
            }
            Command::Repair(Repair::Status { dir, wait: true }) => {
                wait::for_repair(&Admin::of(&dir.absolute()), json).await
            }
            Command::Completion { .. }
            | Command::Man { .. }
            | Command::Up(_)
            | Command::Down(_)
            | Command::Daemon { .. }
            | Command::Mount(_)
            | Command::Umount(_) => {
                unreachable!("these don't ask")
            }
        }
    })?
}

async fn ask_nsd(command: Nsd, json: bool) -> Result<ExitCode> {
    match command {
        Nsd::List(dir) => show(&dir, Method::GET, "/v1/nsds", (), json, nsds).await,
        Nsd::Add {
            dir,
            nsd_size,
            path,
        } => {
            let path = path.map(|path| {
                std::path::absolute(&path)
                    .unwrap_or(path)
                    .display()
                    .to_string()
            });
            show(
                &dir,
                Method::POST,
                "/v1/nsds",
                AddNsd {
                    bytes: nsd_size,
                    path,
                },
                json,
                nsds,
            )
            .await
        }
        Nsd::Change {
            dir,
            nsds: which,
            failure_group,
            own_failure_group: _,
        } => {
            let body = ChangeNsds {
                nsds: which,
                failure_group,
            };
            show(&dir, Method::PATCH, "/v1/nsds", body, json, nsds).await
        }
        Nsd::Remove {
            dir,
            nsd,
            gone,
            wait: false,
        } => {
            let path = wait::path_to_remove(nsd, gone);
            show(&dir, Method::DELETE, &path, (), json, nsds).await
        }
        Nsd::Remove {
            dir,
            nsd,
            gone,
            wait: true,
        } => wait::for_empty(&Admin::of(&dir.absolute()), nsd, gone, json).await,
        Nsd::Open { dir, nsd } => {
            let path = format!("/v1/nsds/{nsd}/open");
            show(&dir, Method::POST, &path, (), json, nsds).await
        }
        Nsd::Scrub { dir, nsd } => {
            let path = nsd.map_or("/v1/nsds/scrub".to_string(), |nsd| {
                format!("/v1/nsds/scrub?nsd={nsd}")
            });
            let continues = "the daemon continues the scrub; damage found is rebuilt and counted \
                             in `shale health`";
            let admin = Admin::of(&dir.absolute());
            let answer = ask_showing(&admin, &path, json, continues).await?;
            present_last(answer, json, scrub)
        }
    }
}

async fn show<A: DeserializeOwned + Serialize>(
    dir: &Dir,
    method: Method,
    path: &str,
    body: impl Serialize,
    json: bool,
    print: impl FnOnce(&A) -> ExitCode,
) -> Result<ExitCode> {
    let dir = dir.absolute();
    let answer: serde_json::Value = Admin::of(&dir).ask(method, path, body).await?;
    present(answer, json, output::json, print)
}

//! Commands that send one request to the running daemon and print its answer.

use super::{
    cluster::number_of,
    members::{SILENT_REMEDY, Said, ask_all, name_of, path_of, path_on},
    present::{
        check, df, events, health, nsds, pool, present, present_last, scrub, settings, status,
    },
    progress::ask_showing,
    repair::repair,
    start::block_on,
    wait, waiters,
};
use crate::{
    admin::{
        AddNsd, ChangeNsds, ChangePool, ChangeSetting, ClusterView, CreateFileSystem,
        FileSystemLine, SettingLine, client::Admin,
    },
    cli::{Command, Config, Dir, Fs, Nsd, Of, Pool, Repair, SettingsOf},
    output::{self, say, table},
};
use hyper::Method;
use model::{Error, ErrorKind, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;

/// Sends the command's request. The exit code is 1 if the answer reports a problem.
pub fn ask(command: Command, json: bool) -> Result<ExitCode> {
    block_on(async {
        match command {
            Command::Status(of) => look(&of, "status", json, status).await,
            Command::Health(of) => look(&of, "health", json, health).await,
            Command::Waiters(of) => waiters::waiters(&of, json).await,
            Command::Events(of) => look(&of, "events", json, events).await,
            Command::Config(command) => ask_config(command, json).await,
            Command::Fs(Fs::Create { dir, name }) => {
                let body = CreateFileSystem { name };
                let made = |line: &FileSystemLine| {
                    say!(
                        "file system {} is made; mount it with `shale fs mount {0} PATH`",
                        line.name
                    );
                    ExitCode::SUCCESS
                };
                show(&dir, Method::POST, "/v1/fs", body, json, made).await
            }
            Command::Fs(Fs::List(dir)) => file_systems(&dir, None, json).await,
            Command::Fs(Fs::Show { dir, name }) => file_systems(&dir, Some(&name), json).await,
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
            Command::Lab(_)
            | Command::Completion { .. }
            | Command::Man { .. }
            | Command::Up(_)
            | Command::Down(_)
            | Command::Daemon { .. }
            | Command::Watchdog { .. }
            | Command::Cluster(_)
            | Command::Node(_)
            | Command::Fs(Fs::Mount { .. } | Fs::Unmount { .. })
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
            node,
            nsd_size,
            path,
        } => {
            let path = path.map(|path| {
                std::path::absolute(&path)
                    .unwrap_or(path)
                    .display()
                    .to_string()
            });
            let on = match node {
                Some(node) => number_of(&Admin::of(&dir.absolute()), &node)
                    .await
                    .map(Some)?,
                None => None,
            };
            show(
                &dir,
                Method::POST,
                &path_on(on, "nsds"),
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
        Nsd::Drain {
            dir,
            nsd,
            cancel: true,
            ..
        } => {
            let path = format!("/v1/nsds/{nsd}/drain");
            show(&dir, Method::DELETE, &path, (), json, nsds).await
        }
        Nsd::Drain { dir, nsd, wait, .. } => take_out(&dir, nsd, false, wait, json).await,
        Nsd::Remove {
            dir,
            nsd,
            gone,
            wait,
        } => take_out(&dir, nsd, gone, wait, json).await,
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

/// Takes an NSD out of use; `waits`: returns when that has come to its end.
async fn take_out(dir: &Dir, nsd: u32, gone: bool, waits: bool, json: bool) -> Result<ExitCode> {
    if waits {
        return wait::for_empty(&Admin::of(&dir.absolute()), nsd, gone, json).await;
    }
    let path = wait::path_to_remove(nsd, gone);
    show(dir, Method::DELETE, &path, (), json, nsds).await
}

/// Asks this node, another one, or all that are up, how they are. The exit code is 1 if one of them has a problem, or
/// doesn't answer.
async fn look<A: DeserializeOwned + Serialize>(
    of: &Of,
    path: &str,
    json: bool,
    print: impl Fn(&A) -> ExitCode,
) -> Result<ExitCode> {
    let admin = Admin::of(&of.dir.absolute());
    if !of.all {
        let path = path_of(&admin, of, path).await?;
        return show(&of.dir, Method::GET, &path, (), json, print).await;
    }
    let (mut code, mut answers) = (ExitCode::SUCCESS, Vec::new());
    for Said { member, answer } in ask_all::<serde_json::Value>(&admin, path).await? {
        let node = member.node;
        if !json {
            say!("node {node} ({}):", name_of(&member));
        }
        let keep = |answer: &serde_json::Value| {
            answers.push(serde_json::json!({ "node": node, "answer": answer }));
        };
        let presented = answer.and_then(|answer| present(answer, json, keep, &print));
        match presented {
            Ok(one) if one == ExitCode::SUCCESS => {}
            Ok(_) => code = ExitCode::from(1),
            Err(error) => {
                code = ExitCode::from(1);
                let error = error.to_string();
                match json {
                    true => answers.push(serde_json::json!({
                        "node": node, "error": error, "remedy": SILENT_REMEDY
                    })),
                    false => say!("  {error}\n    {SILENT_REMEDY}"),
                }
            }
        }
    }
    if json {
        output::json(&answers);
    }
    Ok(code)
}

async fn file_systems(dir: &Dir, only: Option<&str>, json: bool) -> Result<ExitCode> {
    let admin = Admin::of(&dir.absolute());
    let mut view: ClusterView = admin.ask(Method::GET, "/v1/cluster", ()).await?;
    view.file_systems
        .retain(|line| only.is_none_or(|only| line.name == only));
    if let (Some(name), true) = (only, view.file_systems.is_empty()) {
        let text = format!("there is no file system {name}; `shale fs list` shows them");
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    if json {
        output::json(&view.file_systems);
        return Ok(ExitCode::SUCCESS);
    }
    let row = |line: &FileSystemLine| {
        vec![
            line.name.clone(),
            line.shard.to_string(),
            line.owner.map_or("-".into(), |node| node.to_string()),
        ]
    };
    let rows: Vec<_> = view.file_systems.iter().map(row).collect();
    table(&["file system", "shard", "owner"], &rows);
    Ok(ExitCode::SUCCESS)
}

async fn ask_config(command: Config, json: bool) -> Result<ExitCode> {
    match command {
        Config::List { dir, of } => {
            let path = path_of_settings(&Admin::of(&dir.absolute()), &of).await?;
            show(&dir, Method::GET, &path, (), json, settings).await
        }
        Config::Get { dir, name, of } => {
            let admin = Admin::of(&dir.absolute());
            let path = path_of_settings(&admin, &of).await?;
            let all: Vec<SettingLine> = admin.ask(Method::GET, &path, ()).await?;
            let found = all.into_iter().find(|line| line.name == name);
            let found = found.ok_or_else(|| {
                let text = format!("there is no setting {name:?}; `shale config list` shows them");
                Error::new(ErrorKind::NotFound, text)
            })?;
            match json {
                true => output::json(&found),
                false => say!("{}", found.value),
            }
            Ok(ExitCode::SUCCESS)
        }
        Config::Set {
            dir,
            name,
            value,
            node,
            class,
        } => {
            let node = match node {
                Some(node) => Some(number_of(&Admin::of(&dir.absolute()), &node).await?),
                None => None,
            };
            let body = ChangeSetting {
                name,
                value,
                node,
                class,
            };
            show(&dir, Method::PATCH, "/v1/settings", body, json, settings).await
        }
    }
}

/// Where settings are asked for, as those have them that are meant.
///
/// # Errors
/// As [`number_of`].
async fn path_of_settings(admin: &Admin, of: &SettingsOf) -> Result<String> {
    let path = "/v1/settings";
    Ok(match (&of.node, &of.class) {
        (Some(node), _) => format!("{path}?node={}", number_of(admin, node).await?),
        (None, Some(class)) => format!("{path}?class={}", encoded(class)),
        (None, None) => path.into(),
    })
}

/// Any word as a value in a path's query: the daemon says what is wrong with it.
fn encoded(word: &str) -> String {
    let letters = word.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    letters.collect()
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

//! `kura`: the server, and the command line that speaks to it.
//!
//! `kura serve` composes a node: [`node`] starts a thread a controller, [`serve`] opens the doors in front of them.
//! Every other command asks a server through [`kura_admin::Client`].

mod ask;
mod cli;
mod config;
mod data;
mod disks;
mod greeting;
mod lab;
mod logs;
mod modelled;
mod nbd;
mod new_file;
mod node;
mod object;
mod replica;
mod replicate;
mod s3;
mod serve;
mod show;
mod size;
mod snapshot;
mod space;
#[cfg(test)]
mod tests;
mod tier;
mod tls;
mod trace;

use anyhow::{Error, Result};
use clap::{CommandFactory, Parser};
use cli::{Cli, Command, ConfigCommand, DiskArg, PoolCommand, PoolCreate};
use config::{Config, Flags};
use data::DataDir;
use disks::{Book, Planned, refuse_single_fast};
use kura_admin::{ClientError, Problem, ServerUri};
use kura_controller::DiskClass;
use node::{Shape, make_pool};
use show::Out;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;

/// Aligned buffers of one page each take twice their size from the C library's allocator, and this one is quicker.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Cli { common, command } = Cli::parse();
    let json = common.json;
    let done = match command {
        Command::Serve(serve) => serve::serve(serve),
        Command::Pool(PoolCommand::Create(create)) => create_pool(create, common.out()),
        Command::Config(ConfigCommand::Check { file }) => check_config(&file, &common),
        Command::Lab(command) => lab::lab(command, common.out()),
        Command::Replicate(command) => replicate::replicate(command, &common),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "kura", &mut stdout());
            Ok(ExitCode::SUCCESS)
        }
        command => ask_server(&common, command),
    };
    done.unwrap_or_else(|error| {
        complain(&error, json);
        ExitCode::FAILURE
    })
}

fn ask_server(common: &cli::Common, command: Command) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ask::ask(common, command))
}

fn check_config(file: &Path, common: &cli::Common) -> Result<ExitCode> {
    Config::load(Some(file), Flags::default())?;
    common
        .out()
        .show(&serde_json::json!({ "file": file, "valid": true }), |_| format!("{}: all is well", file.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn create_pool(create: PoolCreate, out: Out) -> Result<ExitCode> {
    let mut data = DataDir::open(&create.data)?;
    anyhow::ensure!(data.is_new(), "{} holds a pool already: name another --data", data.path().display());
    let disk = |class| move |disk: DiskArg| Planned { path: disk.path, class, size: disk.size };
    let fast = create.fast.into_iter().map(disk(DiskClass::Fast));
    let planned: Vec<Planned> = fast.chain(create.slow.into_iter().map(disk(DiskClass::Slow))).collect();
    if !create.single_fast {
        refuse_single_fast(
            &planned,
            "say --single-fast: it then has the journals, and serves reads where tier.single_disk names it",
        )?;
    }
    let shape =
        Shape { controllers: create.controllers, extent_bytes: create.extent.0, journal_bytes: create.journal.0 };
    make_pool(&planned, shape, create.force, &Book::open(&data)?)?;
    data.finish()?;
    out.show(&serde_json::json!({ "data": data.path(), "disks": planned.len() }), |_| {
        let data = data.path().display();
        format!("a pool of {} disks is made in {data}: serve it with `kura serve --data {data}`", planned.len())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Tells an error and its remedy, on standard error.
fn complain(error: &Error, json: bool) {
    let (text, remedy) = match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(Problem { error, remedy, .. })) => (error.clone(), remedy.clone()),
        Some(ClientError::NoServer { server, cause }) => no_server(server, cause),
        _ => (format!("{error:#}"), None),
    };
    let shown = match (json, remedy) {
        (true, remedy) => serde_json::json!({ "error": text, "remedy": remedy }).to_string(),
        (false, Some(remedy)) => format!("kura: {text}: {remedy}"),
        (false, None) => format!("kura: {text}"),
    };
    // Nobody to tell is nobody to tell.
    let _ = writeln!(stderr(), "{shown}");
}

fn no_server(server: &ServerUri, cause: &std::io::Error) -> (String, Option<String>) {
    let absent = matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    let text = if absent { format!("no server at {server}") } else { format!("no server at {server}: {cause}") };
    (text, Some("start one with `kura serve`, or name it with --server".to_owned()))
}

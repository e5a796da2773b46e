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
mod pool;
mod replica;
mod replicate;
mod s3;
mod serve;
mod show;
mod size;
mod snapshot;
mod space;
mod tend;
#[cfg(test)]
mod tests;
mod tier;
mod tls;
mod trace;

use anyhow::{Error, Result};
use clap::FromArgMatches;
use cli::{Cli, Command, ConfigCommand, PoolCommand};
use config::{Config, Flags};
use kura_admin::{ClientError, Problem, ServerUri};
// Its allocator is the binary's.
use kura_memory as _;
use std::io::{ErrorKind, Write, stderr, stdout};
use std::path::Path;
use std::process::ExitCode;

/// A configuration that says what holds without one.
const EXAMPLE: &str = include_str!("../../../docs/kura.toml");

fn main() -> ExitCode {
    let Cli { common, command } =
        Cli::from_arg_matches(&cli::command().get_matches()).unwrap_or_else(|error| error.exit());
    let json = common.json;
    let done = match command {
        Command::Serve(serve) => serve::serve(serve),
        Command::Pool(PoolCommand::Create(create)) => pool::create(create, common.out()).map(|()| ExitCode::SUCCESS),
        Command::Pool(PoolCommand::Import(import)) => pool::import(&import, common.out()).map(|()| ExitCode::SUCCESS),
        Command::Config(ConfigCommand::Check { file }) => check_config(&file, &common),
        Command::Config(ConfigCommand::Example) => show::print(EXAMPLE).map(|()| ExitCode::SUCCESS),
        Command::Lab(command) => lab::lab(command, common.out()),
        Command::Replicate(command) => replicate::replicate(command, &common),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut cli::command(), "kura", &mut stdout());
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

/// Tells an error and its remedy, on standard error.
fn complain(error: &Error, json: bool) {
    let (text, remedy) = match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(Problem { error, remedy, .. })) => (error.clone(), remedy.clone()),
        Some(ClientError::NoServer { server, cause }) => no_server(server, cause),
        _ => (format!("{error:#}"), None),
    };
    let shown = match (json, remedy) {
        (true, remedy) => serde_json::json!({ "error": text, "remedy": remedy, "kind": kind(error) }).to_string(),
        (false, Some(remedy)) => format!("kura: {text}: {remedy}"),
        (false, None) => format!("kura: {text}"),
    };
    // Nobody to tell is nobody to tell.
    let _ = writeln!(stderr(), "{shown}");
}

/// What kind of error it is, for programs: the REST API's, or `no-server`; none where only its text tells.
fn kind(error: &Error) -> Option<serde_json::Value> {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(problem)) => serde_json::to_value(problem.kind).ok(),
        Some(ClientError::NoServer { .. }) => Some("no-server".into()),
        _ => {
            let problem = error.downcast_ref::<Problem>().map(|problem| problem.kind);
            let own = error.downcast_ref::<kura_block::Error>().map(|error| error.kind().into());
            serde_json::to_value(problem.or(own)?).ok()
        }
    }
}

fn no_server(server: &ServerUri, cause: &std::io::Error) -> (String, Option<String>) {
    let absent = matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    let text = if absent { format!("no server at {server}") } else { format!("no server at {server}: {cause}") };
    (text, Some("start one with `kura serve`, or name it with --server".to_owned()))
}

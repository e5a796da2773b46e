//! `kura`: the server, and the command line that speaks to it.
//!
//! `kura serve` composes a node: [`node`] starts a thread a controller, [`serve`] opens the doors in front of them.
//! Every other command asks a server through [`kura_admin::Client`].

mod ask;
mod bar;
mod cli;
mod config;
mod descriptors;
mod lab;
mod logs;
mod misuse;
mod new_file;
mod replicate;
mod serve;
mod show;
mod signals;
mod size;
#[cfg(test)]
mod tests;
mod tls;

use anyhow::{Error, Result};
use ask::{asked, bench, export, job, object, pool, snapshot, tier, trace};
use clap::FromArgMatches;
use cli::{Cli, Command, Common, ConfigCommand, PoolCommand};
use config::{Config, Findings, Flags};
use kura_admin::{CheckRequest, ClientError, Problem, ProblemKind, ServerUri};
use kura_replicate::rfc3339;
// Its allocator is the binary's.
use kura_memory as _;
use misuse::Misuse;
use show::Out;
use std::io::{ErrorKind, Write, stderr};
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

/// The exit status of a command line that is wrong.
const MISUSED: u8 = 2;
/// A configuration that says what holds without one.
const EXAMPLE: &str = include_str!("../../../docs/kura.toml");

fn main() -> ExitCode {
    serve::panics::limit();
    let parsed = cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let Cli { common, command } = match parsed {
        Ok(cli) => cli,
        Err(error) => return misused(&error, std::env::args_os().any(|arg| arg == "--json")),
    };
    carry_out(command, &common).unwrap_or_else(|error| {
        complain(&error, None, common.json);
        if error.is::<Misuse>() { MISUSED.into() } else { ExitCode::FAILURE }
    })
}

/// Carries a command out: here, or where it is `asked`, at a server.
fn carry_out(command: Command, common: &Common) -> Result<ExitCode> {
    let out = common.out();
    match command {
        // These have an exit status of their own.
        Command::Serve(serve) => return serve::serve(serve, common.quiet),
        Command::Lab(command) => return lab::lab(command, out),
        Command::Replicate(command) => return replicate::replicate(command, common),
        Command::Check { tables, dry_run, no_wait } => {
            let request = CheckRequest { data: !tables, dry_run };
            return asked(common, async |client| ask::check(client, out, request, !no_wait).await);
        }
        Command::Job(command) => return asked(common, async |client| job::job(client, out, command).await),
        Command::Pool(PoolCommand::Scrub { dry_run, no_wait }) => {
            let request = CheckRequest { data: true, dry_run };
            return asked(common, async |client| ask::check(client, out, request, !no_wait).await);
        }
        Command::Config(ConfigCommand::Check { file }) => check_config(&file, out)?,
        Command::Config(ConfigCommand::Example) => show::print(EXAMPLE)?,
        Command::Completions { shell } => print_completions(shell)?,
        Command::Pool(PoolCommand::Create(create)) => pool::create(create, out)?,
        Command::Pool(PoolCommand::Export(export)) => export::export(&export, out)?,
        Command::Pool(PoolCommand::Import(import)) => pool::import(&import, out)?,
        Command::Pool(PoolCommand::Status) => {
            asked(common, async |client| out.show(&client.pool().await?, show::pool))?;
        }
        Command::Pool(PoolCommand::Grow { disks, class, force, dry_run }) => {
            asked(common, async |client| ask::grow(client, out, disks, class, (force, dry_run)).await)?;
        }
        Command::Status => asked(common, async |client| out.show(&client.status().await?, show::status))?,
        Command::Bench(command) => asked(common, async |client| bench::bench(client, out, command).await)?,
        Command::Disk(command) => asked(common, async |client| ask::disk(client, out, command).await)?,
        Command::Volume(command) => asked(common, async |client| ask::volume(client, out, command).await)?,
        Command::Snapshot(command) => asked(common, async |client| snapshot::snapshot(client, out, command).await)?,
        Command::Controller(command) => asked(common, async |client| ask::controller(client, out, command).await)?,
        Command::Bucket(command) => asked(common, async |client| object::bucket(client, out, command).await)?,
        Command::Key(command) => asked(common, async |client| object::key(client, common, command).await)?,
        Command::Object(command) => asked(common, async |client| object::object(client, out, command).await)?,
        Command::Tier(command) => asked(common, async |client| tier::tier(client, out, command).await)?,
        Command::Trace(command) => asked(common, async |client| trace::trace(client, out, command).await)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "kura", &mut script);
    show::print(&String::from_utf8(script)?)
}

fn check_config(file: &Path, out: Out) -> Result<()> {
    Config::load(Some(file), Flags::default())?;
    out.show(&serde_json::json!({ "file": file, "valid": true }), |_| format!("{}: all is well", file.display()))
}

/// Tells what is wrong with a command line, on one line or as an object; help and the version are told as they are.
fn misused(error: &clap::Error, json: bool) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelpOnMissingArgumentOrSubcommand, MissingSubcommand};
    if !error.use_stderr() || (error.kind() == DisplayHelpOnMissingArgumentOrSubcommand && !json) {
        error.exit();
    }
    let meant = || cli::meant(std::env::args_os().skip(1));
    if error.kind() == MissingSubcommand && !json {
        // So it is called where a variable of the environment stands for an option: the help is wanted all the same.
        let _ = write!(stderr(), "{}", meant().render_long_help());
        return MISUSED.into();
    }
    let is_half = matches!(error.kind(), DisplayHelpOnMissingArgumentOrSubcommand | MissingSubcommand);
    let text = if is_half { lacks(&meant()) } else { error.render().to_string() };
    let (what, usage) = text.split_once("Usage:").unwrap_or((&text, ""));
    let mut lines = what.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("For more"));
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let said = lines.fold(first.to_owned(), |said, line| {
        let join = if said.ends_with(':') {
            " "
        } else if line.starts_with("tip: ") {
            "; "
        } else {
            ", "
        };
        format!("{said}{join}{}", line.trim_start_matches("tip: "))
    });
    // The words of the command, before what it takes.
    let is_word = |word: &&str| word.starts_with(|first: char| first.is_ascii_lowercase());
    let command = usage.split_whitespace().take_while(is_word).collect::<Vec<_>>().join(" ");
    // Of a value that is wrong, no usage is told.
    let name = || meant().get_display_name().unwrap_or("kura").to_owned();
    let command = if command.is_empty() { name() } else { command };
    let remedy = format!("`{command} --help` tells more");
    let _ = if json {
        writeln!(stderr(), "{}", serde_json::json!({ "error": said, "remedy": remedy, "kind": "usage" }))
    } else {
        writeln!(stderr(), "kura: {said}: {remedy}")
    };
    MISUSED.into()
}

/// What a line is told that ends before the word that says what to do.
fn lacks(command: &clap::Command) -> String {
    let mut words: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
    words.sort_unstable();
    format!("{} wants one of: {}", command.get_display_name().unwrap_or("kura"), words.join(", "))
}

/// Tells an error and its remedy, on standard error; of one of several jobs of replication with its name.
fn complain(error: &Error, job: Option<&str>, json: bool) {
    if let (true, Some(findings)) = (json, error.downcast_ref::<Findings>()) {
        let error = format!("{} in the configuration", findings.count());
        let shown = serde_json::json!({ "error": error, "remedy": null, "kind": "invalid", "findings": findings });
        let _ = writeln!(stderr(), "{shown}");
        return;
    }
    let (text, remedy) = match error.downcast_ref::<ClientError>() {
        // With what was done when it was met.
        Some(ClientError::Refused(Problem { remedy, .. })) => (format!("{error:#}"), remedy.clone()),
        Some(ClientError::NoServer { server, cause }) => no_server(server, cause),
        _ => (format!("{error:#}"), None),
    };
    // What others say does nothing to a terminal. Findings are ours, a line each.
    let text = if error.is::<Findings>() { text } else { text.replace(char::is_control, " ") };
    let shown = if json {
        let mut shown = serde_json::json!({ "error": text, "remedy": remedy, "kind": kind(error) });
        if let Some(job) = job {
            shown["job"] = job.into();
        }
        shown.to_string()
    } else {
        let of = job.map(|job| format!("{} {job}: ", rfc3339(SystemTime::now()))).unwrap_or_default();
        let remedy = remedy.map(|remedy| format!(": {remedy}")).unwrap_or_default();
        format!("kura: {of}{text}{remedy}")
    };
    // Standard error may be closed; ignore that.
    let _ = writeln!(stderr(), "{shown}");
}

/// What kind of error it is, for programs: the REST API's, or `no-server`; none where only its text tells.
fn kind(error: &Error) -> Option<serde_json::Value> {
    match error.downcast_ref::<ClientError>() {
        Some(ClientError::Refused(problem)) => serde_json::to_value(problem.kind).ok(),
        Some(ClientError::NoServer { .. }) => Some("no-server".into()),
        Some(ClientError::Unsent(error)) => serde_json::to_value(ProblemKind::from(error.kind())).ok(),
        _ if error.is::<Misuse>() => Some("usage".into()),
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

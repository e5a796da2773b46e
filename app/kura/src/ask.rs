//! The commands that ask a server.

use crate::cli::{
    Class, Command, Common, ControllerCommand, DiskArg, DiskCommand, Layout, MoveTo, PoolCommand, VolumeCommand,
};
use crate::disks::unlike;
use crate::show::{self, Deed, Out};
use crate::size::Size;
use crate::{bench, identify, object, snapshot, tier, tls, trace};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kura_admin::{
    CheckRequest, CheckResult, Client, Disk, DiskState, MoveVolume, NewDisk, NewVolume, Replacement, ResizeVolume,
    ServerUri, Token, Volume,
};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Duration;

/// Carries a command out at the server and shows the answer.
pub async fn ask(common: &Common, command: Command) -> Result<ExitCode> {
    let client = client(common)?;
    let out = common.out();
    match command {
        Command::Status => out.show(&client.status().await?, show::status)?,
        Command::Check { tables, dry_run } => {
            return check(&client, out, CheckRequest { data: !tables, dry_run }).await;
        }
        Command::Pool(PoolCommand::Status) => out.show(&client.pool().await?, show::pool)?,
        Command::Pool(PoolCommand::Grow { disks, class, force }) => grow(&client, out, disks, class, force).await?,
        Command::Pool(PoolCommand::Scrub { dry_run }) => {
            return check(&client, out, CheckRequest { data: true, dry_run }).await;
        }
        Command::Bench(command) => bench::bench(&client, out, command).await?,
        Command::Disk(command) => disk(&client, out, command).await?,
        Command::Volume(command) => volume(&client, out, command).await?,
        Command::Snapshot(command) => snapshot::snapshot(&client, out, command).await?,
        Command::Controller(command) => controller(&client, out, command).await?,
        Command::Bucket(command) => object::bucket(&client, out, command).await?,
        Command::Key(command) => object::key(&client, out, command).await?,
        Command::Object(command) => object::object(&client, out, command).await?,
        Command::Tier(command) => tier::tier(&client, out, command).await?,
        Command::Trace(command) => trace::trace(&client, out, command).await?,
        Command::Serve(_)
        | Command::Pool(PoolCommand::Create(_) | PoolCommand::Import(_) | PoolCommand::Export(_))
        | Command::Config(_)
        | Command::Lab(_)
        | Command::Replicate(_)
        | Command::Completions { .. } => {
            unreachable!("main does these without a server")
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Common {
    /// How answers are shown.
    pub fn out(&self) -> Out {
        match (self.json, self.quiet) {
            (_, true) => Out::Quiet,
            (true, false) => Out::Json,
            (false, false) => Out::Text,
        }
    }
}

fn client(common: &Common) -> Result<Client> {
    let trust = match (&common.server, &common.ca) {
        (ServerUri::Https(_), None) => {
            bail!("{} needs an authority to trust: name its PEM file with --ca", common.server)
        }
        (ServerUri::Https(_), Some(ca)) => Some(tls::trust(ca)?),
        _ => None,
    };
    Ok(Client::new(common.server.clone(), common.token.as_deref().map(Token::new), trust))
}

async fn disk(client: &Client, out: Out, command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List => out.show(client.disks().await?.as_slice(), show::disks),
        DiskCommand::Identify { disk: id } => {
            out.show(&identify::Identity::of(known_disk(client, id).await?), identify::text)
        }
        DiskCommand::Add { path, class, size, force } => {
            let disk = add_disk(client, DiskArg { path, size }, class, force).await?;
            let said = unlike_disks(client).await?;
            out.show(&disk, |disk| said.into_iter().fold(added(disk), |text, said| format!("{text}\n{said}")))
        }
        DiskCommand::Remove { disk, no_wait, dry_run } => {
            let leaving = known_disk(client, disk).await?;
            if dry_run {
                client.trial().remove_disk(disk).await?;
                return would_leave(out, leaving, None);
            }
            client.remove_disk(disk).await?;
            leave(client, out, leaving, !no_wait).await
        }
        DiskCommand::Replace { disk, path, size, force, no_wait, dry_run } => {
            let leaving = known_disk(client, disk).await?;
            let path = std::path::absolute(path)?.display().to_string();
            let new = Replacement { path, size_bytes: size.map(|size| size.0), force };
            if dry_run {
                client.trial().replace_disk(disk, &new).await?;
                return would_leave(out, leaving, Some(&new.path));
            }
            client.replace_disk(disk, &new).await?;
            leave(client, out, leaving, !no_wait).await
        }
        DiskCommand::Fail { disk: id, force, dry_run } => {
            if dry_run {
                client.trial().fail_disk(id, force).await?;
            } else {
                client.fail_disk(id, force).await?;
            }
            let disk = known_disk(client, id).await?;
            out.show(&Deed { dry_run, of: &disk }, |Deed { of: Disk { path, .. }, .. }| {
                if dry_run {
                    format!(
                        "would mark disk {id} ({path}) as failed: its data would have one copy less until it is rebuilt"
                    )
                } else {
                    format!("disk {id} ({path}) is marked as failed: what it held is rebuilt on the others")
                }
            })
        }
    }
}

/// Adds disks, one after another.
async fn grow(client: &Client, out: Out, disks: Vec<DiskArg>, class: Class, force: bool) -> Result<()> {
    let (mut new, all) = (Vec::new(), disks.len());
    for disk in disks {
        let path = disk.path.display().to_string();
        let done = add_disk(client, disk, class, force).await;
        let left = || format!("{path}: {} of {all} disks were added before", new.len());
        new.push(if new.is_empty() { done? } else { done.with_context(left)? });
    }
    let said = unlike_disks(client).await?;
    out.show(new.as_slice(), |new| new.iter().map(added).chain(said).collect::<Vec<_>>().join("\n"))
}

async fn add_disk(client: &Client, disk: DiskArg, class: Class, force: bool) -> Result<Disk> {
    let class = match class {
        Class::Fast => kura_admin::DiskClass::Fast,
        Class::Slow => kura_admin::DiskClass::Slow,
    };
    // The server may run in another directory.
    let path = std::path::absolute(disk.path)?.display().to_string();
    let new = NewDisk { path, class, size_bytes: disk.size.map(|size| size.0), force };
    Ok(client.add_disk(&new).await?)
}

fn added(disk: &Disk) -> String {
    format!("disk {} ({}) adds {}", disk.id, disk.path, Size(disk.data_bytes))
}

/// What is to be said of the disks for data where they are not of one size.
async fn unlike_disks(client: &Client) -> Result<Option<String>> {
    let disks = client.disks().await?;
    let slow = disks.iter().filter(|disk| disk.class == kura_admin::DiskClass::Slow);
    Ok(unlike(slow.map(|disk| disk.size_bytes)))
}

async fn known_disk(client: &Client, id: u16) -> Result<Disk> {
    let disk = client.disks().await?.into_iter().find(|disk| disk.id == id);
    disk.with_context(|| format!("disk {id}: no such disk; `kura disk list` lists them"))
}

/// A disk that leaves, or would.
#[derive(Serialize)]
struct Leaving {
    #[serde(flatten)]
    disk: Disk,
    /// True when it has left.
    removed: bool,
}

fn would_leave(out: Out, disk: Disk, new: Option<&str>) -> Result<()> {
    let used = Size(if disk.unwanted_bytes > 0 { disk.unwanted_bytes } else { disk.data_bytes - disk.free_bytes });
    let leaving = Deed { dry_run: true, of: Leaving { disk, removed: false } };
    out.show(&leaving, |Deed { of: Leaving { disk: Disk { id, path, .. }, .. }, .. }| match new {
        Some(new) => format!("would add {new}, move at most {used} off disk {id} ({path}), and remove that one"),
        None => format!("would move at most {used} off disk {id} ({path}), and remove it"),
    })
}

/// Waits until a disk has left.
async fn leave(client: &Client, out: Out, disk: Disk, wait: bool) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(200);
    let (id, path) = (disk.id, disk.path.clone());
    let mut last = Disk { state: DiskState::Leaving, unwanted_bytes: 0, ..disk };
    let bar = ProgressBar::new(0).with_message(format!("moving what disk {id} holds"));
    bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left")?);
    if !wait || matches!(out, Out::Quiet) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    while let Some(now) = client.disks().await?.into_iter().find(|disk| disk.id == id) {
        if !wait {
            let leaving = Deed { dry_run: false, of: Leaving { disk: now, removed: false } };
            return out.show(&leaving, |_| format!("disk {id} ({path}) is leaving; `kura disk list` shows progress"));
        }
        if now.lost_bytes > 0 && now.unwanted_bytes == now.lost_bytes {
            bar.finish_and_clear();
            bail!(
                "disk {id} ({path}) had the only copy of {}: delete the volumes that lay on it; it stays in the pool until then",
                Size(now.lost_bytes)
            );
        }
        if let Some(why) = &now.stalled {
            bar.set_message(format!("disk {id} waits: {why}"));
        }
        bar.set_length(bar.length().unwrap_or(0).max(now.unwanted_bytes));
        bar.set_position(bar.length().unwrap_or(0) - now.unwanted_bytes);
        last = now;
        tokio::time::sleep(LOOK).await;
    }
    bar.finish_and_clear();
    let disk = Disk { unwanted_bytes: 0, ..last };
    let left = Deed { dry_run: false, of: Leaving { disk, removed: true } };
    out.show(&left, |_| format!("disk {id} ({path}) has left the pool"))
}

async fn controller(client: &Client, out: Out, command: ControllerCommand) -> Result<()> {
    match command {
        ControllerCommand::List => out.show(client.controllers().await?.as_slice(), show::controllers),
        ControllerCommand::Stats => out.show(client.controllers().await?.as_slice(), show::controller_stats),
        ControllerCommand::Drain { controller } => {
            let drained = client.drain_controller(controller).await?;
            out.show(&drained, |drained| show::drained(controller, drained))?;
            if !drained.stays.is_empty() {
                bail!("controller {controller} keeps {} volumes", drained.stays.len());
            }
            Ok(())
        }
        ControllerCommand::Move(to) => move_to(client, out, &to).await,
        ControllerCommand::Resume { controller } => {
            let resumed = client.resume_controller(controller).await?;
            out.show(&resumed, |resumed| format!("controller {} takes volumes again", resumed.id))
        }
    }
}

async fn volume(client: &Client, out: Out, command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create { name, size, layout, thin: _, thick, read_only } => {
            let layout = layout.map(|layout| match layout {
                Layout::Mirror => kura_admin::Layout::Mirror,
                Layout::Raid5 => kura_admin::Layout::Raid5,
                Layout::HotMirror => kura_admin::Layout::HotMirror,
                Layout::None => kura_admin::Layout::None,
            });
            let new = NewVolume { name, size_bytes: size.0, layout, thick, read_only };
            let volume = client.create_volume(&new).await?;
            out.show(&volume, |volume| format!("created volume {} of {}", volume.name, Size(volume.size_bytes)))
        }
        VolumeCommand::List => out.show(client.volumes().await?.as_slice(), show::volumes),
        VolumeCommand::Show { name } => {
            out.show(&client.volume(&name).await?, |volume| show::volumes(std::slice::from_ref(volume)))
        }
        VolumeCommand::Resize { name, size, shrink, dry_run } => {
            resize(client, out, &name, ResizeVolume { size_bytes: size.0, shrink }, dry_run).await
        }
        VolumeCommand::MoveTo(to) => move_to(client, out, &to).await,
        VolumeCommand::Delete { name, force, dry_run } => delete(client, out, &name, force, dry_run).await,
    }
}

async fn move_to(client: &Client, out: Out, to: &MoveTo) -> Result<()> {
    let (name, controller) = (&to.name, to.controller());
    let moved = client.move_volume(name, MoveVolume { controller }).await?;
    out.show(&moved, |moved| match (moved.from, moved.volume.controller) {
        (from, to) if from == to => format!("volume {name} is controller {to}'s already"),
        (from, to) => {
            let waited = Duration::from_micros(moved.waited_us);
            format!("volume {name} has moved from controller {from} to {to}; its writes waited {waited:.1?}")
        }
    })
}

/// A volume that was resized, or would be.
#[derive(Serialize)]
struct Resized {
    #[serde(flatten)]
    volume: Volume,
    to_size_bytes: u64,
}

async fn resize(client: &Client, out: Out, name: &str, to: ResizeVolume, dry_run: bool) -> Result<()> {
    let before = client.volume(name).await?;
    let (from, size, to_size_bytes) = (Size(before.size_bytes), Size(to.size_bytes), to.size_bytes);
    let loses = to.size_bytes < before.size_bytes;
    if loses && !to.shrink {
        bail!("volume {name} has {from}: making it smaller loses what lies beyond {size}; say --shrink if you mean it");
    }
    if dry_run {
        client.trial().resize_volume(name, to).await?;
        let loss = if loses { format!(", and lose what lies beyond {size}") } else { String::new() };
        let would = Deed { dry_run, of: Resized { volume: before, to_size_bytes } };
        return out.show(&would, |_| format!("would resize volume {name} from {from} to {size}{loss}"));
    }
    let volume = client.resize_volume(name, to).await?;
    out.show(&Deed { dry_run, of: Resized { volume, to_size_bytes } }, |_| {
        format!("resized volume {name} from {from} to {size}; clients see it when they reconnect")
    })
}

async fn delete(client: &Client, out: Out, name: &str, force: bool, dry_run: bool) -> Result<()> {
    let volume = client.volume(name).await?;
    let (holds, size) = (Size(volume.allocated_bytes), Size(volume.size_bytes));
    let of = Deed { dry_run, of: volume };
    if dry_run {
        client.trial().delete_volume(name, force).await?;
        return out.show(&of, |_| format!("would delete volume {name} of {size}, which holds {holds}"));
    }
    client.delete_volume(name, force).await?;
    out.show(&of, |_| format!("deleted volume {name}; it held {holds}"))
}

async fn check(client: &Client, out: Out, request: CheckRequest) -> Result<ExitCode> {
    let job = client.check(request).await?;
    let doing = if request.data { "reading every copy" } else { "checking tables" };
    let spinner = ProgressBar::new_spinner().with_message(doing);
    spinner.set_style(ProgressStyle::with_template("{spinner} {msg}, {elapsed}")?);
    if !matches!(out, Out::Quiet) {
        spinner.enable_steady_tick(Duration::from_millis(100));
    }
    let ended = client.follow(job.id, |_| ()).await;
    spinner.finish_and_clear();
    let ended = ended?;
    if let Some(problem) = ended.error {
        return Err(problem.into());
    }
    let result = ended.result.context("the check ended without a result")?;
    out.show(&result, show::check)?;
    Ok(verdict(&result))
}

/// A dry run fails as well where there is something to repair: what it looked at is not as it should be.
fn verdict(result: &CheckResult) -> ExitCode {
    let is_well = result.violations.is_empty() && (result.repaired == 0 || !result.dry_run);
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

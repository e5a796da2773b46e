//! The commands that ask a server.

use crate::cli::{Class, Command, Common, ControllerCommand, DiskCommand, Layout, PoolCommand, VolumeCommand};
use crate::disks::unlike;
use crate::show::{self, Out};
use crate::size::Size;
use crate::{object, snapshot, tier, tls, trace};
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kura_admin::{
    CheckRequest, CheckResult, Client, Disk, MoveVolume, NewDisk, NewVolume, ResizeVolume, ServerUri, Token, Volume,
};
use std::process::ExitCode;
use std::time::Duration;

/// Carries a command out at the server and shows the answer.
pub async fn ask(common: &Common, command: Command) -> Result<ExitCode> {
    let client = client(common)?;
    let out = common.out();
    match command {
        Command::Status => out.show(&client.status().await?, show::status)?,
        Command::Check { tables } => return check(&client, out, !tables).await,
        Command::Pool(PoolCommand::Status) => out.show(&client.pool().await?, show::pool)?,
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
        | Command::Pool(PoolCommand::Create(_))
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
            (true, _) => Out::Json,
            (false, true) => Out::Quiet,
            (false, false) => Out::Text,
        }
    }
}

fn client(common: &Common) -> Result<Client> {
    let trust = match (&common.server, &common.ca) {
        (ServerUri::Https(_), None) => {
            bail!("{} wants an authority to trust: name its PEM file with --ca", common.server)
        }
        (ServerUri::Https(_), Some(ca)) => Some(tls::trust(ca)?),
        _ => None,
    };
    Ok(Client::new(common.server.clone(), common.token.as_deref().map(Token::new), trust))
}

async fn disk(client: &Client, out: Out, command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List => out.show(client.disks().await?.as_slice(), show::disks),
        DiskCommand::Add { path, class, size, force } => {
            let class = match class {
                Class::Fast => kura_admin::DiskClass::Fast,
                Class::Slow => kura_admin::DiskClass::Slow,
            };
            // The server may run in another directory.
            let path = std::path::absolute(path)?.display().to_string();
            let new = NewDisk { path, class, size_bytes: size.map(|size| size.0), force };
            let disk = client.add_disk(&new).await?;
            let disks = client.disks().await?;
            let said = unlike(
                disks.iter().filter(|disk| disk.class == kura_admin::DiskClass::Slow).map(|disk| disk.size_bytes),
            );
            out.show(&disk, |disk| {
                let added = format!("disk {} ({}) adds {}", disk.id, disk.path, Size(disk.data_bytes));
                said.map_or(added.clone(), |said| format!("{added}\n{said}"))
            })
        }
        DiskCommand::Remove { disk, no_wait, dry_run } => remove(client, out, disk, !no_wait, dry_run).await,
        DiskCommand::Replace { disk: id, path, size, force, no_wait } => {
            let class = known_disk(client, id).await?.class;
            let path = std::path::absolute(path)?.display().to_string();
            client.add_disk(&NewDisk { path, class, size_bytes: size.map(|size| size.0), force }).await?;
            remove(client, out, id, !no_wait, false).await
        }
        DiskCommand::Fail { disk: id, dry_run } => {
            if !dry_run {
                client.fail_disk(id).await?;
            }
            let disk = known_disk(client, id).await?;
            out.show(&disk, |disk| {
                let path = &disk.path;
                if dry_run {
                    format!("would fail disk {id} ({path}): its data would have one copy less until it is copied anew")
                } else {
                    format!("disk {id} ({path}) is failed: what it held is copied anew to the others")
                }
            })
        }
    }
}

async fn known_disk(client: &Client, id: u16) -> Result<Disk> {
    let disk = client.disks().await?.into_iter().find(|disk| disk.id == id);
    disk.with_context(|| format!("disk {id}: no such disk; `kura disk list` lists them"))
}

/// Lets a disk leave, and waits until it has.
async fn remove(client: &Client, out: Out, id: u16, wait: bool, dry_run: bool) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(200);
    let disk = known_disk(client, id).await?;
    let used = if disk.unwanted_bytes > 0 { disk.unwanted_bytes } else { disk.data_bytes - disk.free_bytes };
    if dry_run {
        return out.show(&disk, |disk| {
            format!("would move at most {} off disk {id} ({}), and forget it", Size(used), disk.path)
        });
    }
    client.remove_disk(id).await?;
    let path = &disk.path;
    if !wait {
        return out.show(&disk, |_| format!("disk {id} ({path}) leaves; `kura disk list` tells how far it is"));
    }
    let bar = ProgressBar::new(0).with_message(format!("moving what disk {id} holds"));
    bar.set_style(ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes}, {eta} left")?);
    if matches!(out, Out::Quiet) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    while let Some(now) = client.disks().await?.into_iter().find(|disk| disk.id == id) {
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
        tokio::time::sleep(LOOK).await;
    }
    bar.finish_and_clear();
    out.show(&disk, |_| format!("disk {id} ({path}) has left the pool"))
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
        ControllerCommand::Resume { controller } => {
            client.resume_controller(controller).await?;
            out.show(&controller, |controller| format!("controller {controller} takes volumes again"))
        }
    }
}

async fn volume(client: &Client, out: Out, command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create { name, size, layout, thin: _, thick, read_only } => {
            let layout = match layout {
                Layout::Mirror => kura_admin::Layout::Mirror,
                Layout::Raid5 => kura_admin::Layout::Raid5,
                Layout::HotMirror => kura_admin::Layout::HotMirror,
                Layout::None => kura_admin::Layout::None,
            };
            let new = NewVolume { name, size_bytes: size.0, layout, thick, read_only };
            let volume = client.create_volume(&new).await?;
            out.show(&volume, |volume| format!("volume {} of {} is made", volume.name, Size(volume.size_bytes)))
        }
        VolumeCommand::List => out.show(client.volumes().await?.as_slice(), show::volumes),
        VolumeCommand::Show { name } => {
            out.show(&client.volume(&name).await?, |volume| show::volumes(std::slice::from_ref(volume)))
        }
        VolumeCommand::Resize { name, size, shrink, dry_run } => {
            resize(client, out, &name, ResizeVolume { size_bytes: size.0, shrink }, dry_run).await
        }
        VolumeCommand::Move { name, controller } => {
            let moved = client.move_volume(&name, MoveVolume { controller }).await?;
            out.show(&moved, |moved| match (moved.from, moved.volume.controller) {
                (from, to) if from == to => format!("volume {name} is controller {to}'s already"),
                (from, to) => {
                    let waited = Duration::from_micros(moved.waited_us);
                    format!("volume {name} has moved from controller {from} to {to}; its writes waited {waited:.1?}")
                }
            })
        }
        VolumeCommand::Delete { name, force, dry_run } => delete(client, out, &name, force, dry_run).await,
    }
}

async fn resize(client: &Client, out: Out, name: &str, to: ResizeVolume, dry_run: bool) -> Result<()> {
    let before = client.volume(name).await?;
    let (from, size) = (Size(before.size_bytes), Size(to.size_bytes));
    let loses = to.size_bytes < before.size_bytes;
    if loses && !to.shrink {
        bail!("volume {name} has {from}: making it smaller loses what lies beyond {size}; say --shrink if you mean it");
    }
    if dry_run {
        let after = Volume { size_bytes: to.size_bytes, ..before };
        let loss = if loses { format!(", and lose what lies beyond {size}") } else { String::new() };
        return out.show(&after, |_| format!("would resize volume {name} from {from} to {size}{loss}"));
    }
    let after = client.resize_volume(name, to).await?;
    out.show(&after, |_| {
        format!("volume {name} is resized from {from} to {size}; clients see it when they connect anew")
    })
}

async fn delete(client: &Client, out: Out, name: &str, force: bool, dry_run: bool) -> Result<()> {
    let volume = client.volume(name).await?;
    let holds = Size(volume.allocated_bytes);
    if !dry_run {
        client.delete_volume(name, force).await?;
        return out.show(&volume, |_| format!("volume {name} is deleted; it held {holds}"));
    }
    if volume.clients > 0 && !force {
        bail!("volume {name} is open to {} clients: stop them first, or say --force", volume.clients);
    }
    out.show(&volume, |volume| {
        format!("would delete volume {name} of {}, which holds {holds}", Size(volume.size_bytes))
    })
}

async fn check(client: &Client, out: Out, data: bool) -> Result<ExitCode> {
    let job = client.check(CheckRequest { data }).await?;
    let spinner = ProgressBar::new_spinner().with_message(if data { "reading every copy" } else { "checking tables" });
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

fn verdict(result: &CheckResult) -> ExitCode {
    if result.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

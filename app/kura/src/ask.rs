//! The commands that ask a server.

pub mod bench;
pub mod export;
mod identify;
pub mod job;
pub mod object;
pub mod pool;
pub mod snapshot;
pub mod tier;
pub mod trace;

use crate::bar::patiently;
use crate::cli::{Class, Common, ControllerCommand, DiskArg, DiskCommand, MoveTo, Resize, VolumeCommand};
use crate::misuse::Misuse;
use crate::serve::disks::unlike;
use crate::show::{self, Deed, Out};
use crate::size::Size;
use crate::tls;
use anyhow::{Context, Result, bail};
use kura_admin::{
    CheckRequest, CheckResult, Client, Disk, DrainedController, Job, JobResult, JobState, MoveVolume, NewDisk,
    NewVolume, Replacement, Replacing, ResizeVolume, ServerUri, Token, Volume,
};
use kura_replicate::is_this_machine;
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::Path;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

/// After how long without a word a server is said to be waited for.
const SILENCE: Duration = Duration::from_secs(3);

/// Does what asks a server, with a client of the one that is named.
pub fn asked<T>(common: &Common, work: impl AsyncFnOnce(&Client) -> Result<T>) -> Result<T> {
    let client = client(&common.server, common.token.as_ref(), common.ca.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut work = pin!(work(&client));
        if let Ok(done) = tokio::time::timeout(SILENCE, &mut work).await {
            return done;
        }
        if client.owes_first_answer() && !common.quiet && !common.json {
            // Standard error may be closed; ignore that.
            let _ = writeln!(stderr(), "kura: waiting for the server at {}, which says nothing so far", common.server);
        }
        work.await
    })
}

/// A client of a server. Refuses to show the token, which opens everything, to all who are between here and another machine.
pub fn client(server: &ServerUri, token: Option<&Token>, ca: Option<&Path>) -> Result<Client> {
    if let (ServerUri::Http(authority), Some(_)) = (server, token)
        && !is_this_machine(authority.host())
    {
        let text = "is another machine, and whoever is between would read the token: name https://";
        return Err(Misuse(format!("--server http://{authority}: {text}")).into());
    }
    Ok(Client::new(server.clone(), token.cloned(), tls::trusted(server, ca, "--ca")?))
}

/// Refuses a server that is named as another machine's, for what looks at the one it runs on.
fn is_here(client: &Client) -> Result<()> {
    match client.server() {
        ServerUri::Http(authority) | ServerUri::Https(authority) if !is_this_machine(authority.host()) => {
            let text = "is another machine, and this looks at the one that it runs on: run it there";
            Err(Misuse(format!("--server {}: {text}", client.server())).into())
        }
        _ => Ok(()),
    }
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

    /// The same for what is told also to who wants nothing told.
    pub fn loud(&self) -> Out {
        if self.json { Out::Json } else { Out::Text }
    }
}

/// Carries out a command on disks.
pub async fn disk(client: &Client, out: Out, command: DiskCommand) -> Result<()> {
    match command {
        DiskCommand::List => out.show(client.disks().await?.as_slice(), show::disks),
        DiskCommand::Identify { disk: id } => {
            is_here(client)?;
            out.show(&identify::Identity::of(known_disk(client, id).await?), identify::text)
        }
        DiskCommand::Add { path, class, size, force, dry_run } => {
            let new = new_disk(DiskArg { path, size }, class, force)?;
            if dry_run {
                return would_add(client, out, vec![new]).await;
            }
            let disk = patiently(out, "adding the disk", client.add_disk(&new)).await?;
            let said = unlike_disks(client).await;
            out.show(&disk, |disk| said.into_iter().fold(added(disk), |text, said| format!("{text}\n{said}")))
        }
        DiskCommand::Remove { disk, no_wait, dry_run } => {
            let leaving = known_disk(client, disk).await?;
            if dry_run {
                client.trial().remove_disk(disk).await?;
                return would_leave(out, leaving, None);
            }
            let job = client.remove_disk(disk).await?;
            leave(client, out, Leaving::by(leaving, &job), &job, !no_wait).await
        }
        DiskCommand::Replace { disk, path, size, force, no_wait, dry_run } => {
            let leaving = known_disk(client, disk).await?;
            let path = std::path::absolute(path)?.display().to_string();
            let new = Replacement { path, size_bytes: size.map(|size| size.0), force };
            if dry_run {
                client.trial().replace_disk(disk, &new).await?;
                return would_leave(out, leaving, Some(&new.path));
            }
            let begun = patiently(out, "adding the disk", client.replace_disk(disk, &new)).await?;
            let Replacing { job, new_disk } = begun;
            let leaving = Leaving { new_disk: Some(new_disk), ..Leaving::by(leaving, &job) };
            leave(client, out, leaving, &job, !no_wait).await
        }
        DiskCommand::Fail { disk: id, force, wait, no_wait: _, dry_run: false } => {
            fail(client, out, id, force, wait).await
        }
        DiskCommand::Fail { disk: id, force, dry_run, .. } => {
            client.trial().fail_disk(id, force).await?;
            out.show(&Deed { dry_run, of: known_disk(client, id).await? }, |Deed { of: Disk { path, .. }, .. }| {
                format!(
                    "would mark disk {id} ({path}) as failed: its data would have one copy less until it is rebuilt"
                )
            })
        }
    }
}

/// Adds disks, one after another.
pub async fn grow(
    client: &Client,
    out: Out,
    disks: Vec<DiskArg>,
    class: Class,
    (force, dry_run): (bool, bool),
) -> Result<()> {
    let disks = disks.into_iter().map(|disk| new_disk(disk, class, force)).collect::<Result<Vec<_>>>()?;
    if dry_run {
        return would_add(client, out, disks).await;
    }
    let (mut new, all) = (Vec::new(), disks.len());
    for disk in disks {
        let done = patiently(out, "adding the disk", client.add_disk(&disk)).await;
        let left = || format!("{} of {all} disks were added before", new.len());
        new.push(if new.is_empty() { done? } else { done.with_context(left)? });
    }
    let said = unlike_disks(client).await;
    out.show(new.as_slice(), |new| new.iter().map(added).chain(said).collect::<Vec<_>>().join("\n"))
}

/// Tells what adding disks would do, which is refused where that is.
async fn would_add(client: &Client, out: Out, disks: Vec<NewDisk>) -> Result<()> {
    for disk in &disks {
        client.trial().add_disk(disk).await?;
    }
    let deeds: Vec<_> = disks.into_iter().map(|of| Deed { dry_run: true, of }).collect();
    let line = |Deed { of: NewDisk { path, size_bytes, .. }, .. }: &Deed<NewDisk>| match size_bytes {
        Some(bytes) => format!("would add {path}, as a sparse file of {} unless it is there", Size(*bytes)),
        None => format!("would add {path}: everything on it would be lost"),
    };
    out.show(deeds.as_slice(), |deeds| deeds.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// A disk as the server is asked to add it.
fn new_disk(disk: DiskArg, class: Class, force: bool) -> Result<NewDisk> {
    // The server may run in another directory.
    let path = std::path::absolute(disk.path)?.display().to_string();
    Ok(NewDisk { path, class: class.into(), size_bytes: disk.size.map(|size| size.0), force })
}

fn added(disk: &Disk) -> String {
    format!("disk {} ({}) adds {}", disk.id, disk.path, Size(disk.data_bytes))
}

/// What is to be said of the disks for data where they are not of one size. That nobody knows makes no deed undone.
async fn unlike_disks(client: &Client) -> Option<String> {
    let disks = client.disks().await.ok()?;
    unlike(disks.iter().filter(|disk| disk.takes_data).map(|disk| disk.size_bytes))
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
    /// The job that moves what it holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<u64>,
    /// Which disk takes its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    new_disk: Option<u16>,
}

impl Leaving {
    fn by(disk: Disk, job: &Job) -> Self {
        Self { disk, removed: false, job: Some(job.id), new_disk: None }
    }
}

fn would_leave(out: Out, disk: Disk, new: Option<&str>) -> Result<()> {
    let used = Size(if disk.unwanted_bytes > 0 { disk.unwanted_bytes } else { disk.used_bytes() });
    let leaving = Deed { dry_run: true, of: Leaving { disk, removed: false, job: None, new_disk: None } };
    out.show(&leaving, |Deed { of: Leaving { disk: Disk { id, path, .. }, .. }, .. }| match new {
        Some(new) => format!("would add {new}, move at most {used} off disk {id} ({path}), and remove that one"),
        None => format!("would move at most {used} off disk {id} ({path}), and remove it"),
    })
}

/// Waits until a disk has left, which is what the job is about.
async fn leave(client: &Client, out: Out, leaving: Leaving, job: &Job, wait: bool) -> Result<()> {
    let (id, path) = (leaving.disk.id, leaving.disk.path.clone());
    if !wait {
        // It may have left by now.
        let disk = known_disk(client, id).await.unwrap_or_else(|_| leaving.disk.clone());
        let leaving = Deed { dry_run: false, of: Leaving { disk, ..leaving } };
        let follow = job.id;
        return out
            .show(&leaving, |_| format!("disk {id} ({path}) is leaving; `kura job follow {follow}` shows progress"));
    }
    let JobResult::Disk(disk) = job::result(client, out, job).await? else { bail!(unlike_its_kind(job)) };
    let left = Deed { dry_run: false, of: Leaving { disk, removed: true, ..leaving } };
    out.show(&left, |_| format!("disk {id} ({path}) has left the pool"))
}

/// A disk whose data is rebuilt on others.
#[derive(Serialize)]
struct Rebuilt {
    #[serde(flatten)]
    disk: Disk,
    /// The job that does it.
    job: u64,
}

/// Marks a disk as failed, and waits for the rebuild where that is wanted.
async fn fail(client: &Client, out: Out, id: u16, force: bool, wait: bool) -> Result<()> {
    let before = known_disk(client, id).await?;
    let job = client.fail_disk(id, force).await?;
    if wait {
        let JobResult::Disk(disk) = job::result(client, out, &job).await? else { bail!(unlike_its_kind(&job)) };
        let failed = Deed { dry_run: false, of: Rebuilt { disk, job: job.id } };
        return out.show(&failed, |Deed { of: Rebuilt { disk: Disk { path, .. }, .. }, .. }| {
            format!("disk {id} ({path}) is marked as failed, and what it held is on the others")
        });
    }
    let disk = known_disk(client, id).await.unwrap_or(before);
    let failed = Deed { dry_run: false, of: Rebuilt { disk, job: job.id } };
    out.show(&failed, |Deed { of: Rebuilt { disk: Disk { path, .. }, job: follow }, .. }| {
        format!(
            "disk {id} ({path}) is marked as failed: what it held is rebuilt on the others; `kura job follow {follow}` shows \
             progress"
        )
    })
}

/// What is said of a job that nobody waits for.
fn goes_on(job: &Job) -> String {
    format!("the {job} is under way; `kura job follow {}` shows progress", job.id)
}

fn unlike_its_kind(job: &Job) -> String {
    format!("job {}: the server's answer is not a {job}'s", job.id)
}

/// Carries out a command on controllers.
pub async fn controller(client: &Client, out: Out, command: ControllerCommand) -> Result<()> {
    match command {
        ControllerCommand::List => out.show(client.controllers().await?.as_slice(), show::controllers),
        ControllerCommand::Stats => out.show(client.controllers().await?.as_slice(), show::controller_stats),
        ControllerCommand::Drain { controller, no_wait } => {
            let job = client.drain_controller(controller).await?;
            if no_wait {
                return out.show(&job, goes_on);
            }
            let JobResult::Drained(drained) = job::result(client, out, &job).await? else {
                bail!(unlike_its_kind(&job))
            };
            out.show(&drained, |drained| {
                let mut lines = show::drained(drained);
                lines.push(format!(
                    "controller {controller} takes no volumes until you run `kura controller resume {controller}`"
                ));
                lines.join("\n")
            })?;
            has_drained(&drained)
        }
        ControllerCommand::Move(to) => move_to(client, out, &to).await,
        ControllerCommand::Resume { controller } => {
            let resumed = client.resume_controller(controller).await?;
            out.show(&resumed, |resumed| format!("controller {} takes volumes again", resumed.id))
        }
    }
}

/// Carries out a command on volumes.
pub async fn volume(client: &Client, out: Out, command: VolumeCommand) -> Result<()> {
    match command {
        VolumeCommand::Create { name, size, layout, thin: _, thick, read_only } => {
            let layout = layout.map(Into::into);
            let new = NewVolume { name, size_bytes: size.0, layout, thick, read_only };
            let volume = patiently(out, "making the volume", client.create_volume(&new)).await?;
            out.show(&volume, |volume| format!("created volume {} of {}", volume.name, Size(volume.size_bytes)))
        }
        VolumeCommand::List => out.show(client.volumes().await?.as_slice(), show::volumes),
        VolumeCommand::Show { name } => {
            out.show(&client.volume(&name).await?, |volume| show::volumes(std::slice::from_ref(volume)))
        }
        VolumeCommand::Resize(how) => resize(client, out, how).await,
        VolumeCommand::MoveTo(to) => move_to(client, out, &to).await,
        VolumeCommand::Delete { name, force, dry_run } => delete(client, out, &name, force, dry_run).await,
    }
}

async fn move_to(client: &Client, out: Out, to: &MoveTo) -> Result<()> {
    let MoveTo { name, controller, no_wait } = to;
    let job = client.move_volume(name, MoveVolume { controller: *controller }).await?;
    if *no_wait {
        return out.show(&job, goes_on);
    }
    let JobResult::Moved(moved) = job::result(client, out, &job).await? else { bail!(unlike_its_kind(&job)) };
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

async fn resize(client: &Client, out: Out, how: Resize) -> Result<()> {
    let Resize { name, size, shrink, force, dry_run } = how;
    let (before, to) = (client.volume(&name).await?, ResizeVolume { size_bytes: size.0, shrink });
    let (from, loses) = (Size(before.size_bytes), size.0 < before.size_bytes);
    if loses && !shrink {
        bail!("volume {name} has {from}: making it smaller loses what lies beyond {size}; say --shrink if you mean it");
    }
    if dry_run {
        client.trial().resize_volume(&name, to, force).await?;
        let loss = if loses { format!(", and lose what lies beyond {size}") } else { String::new() };
        let would = Deed { dry_run, of: Resized { volume: before, to_size_bytes: size.0 } };
        return out.show(&would, |_| format!("would resize volume {name} from {from} to {size}{loss}"));
    }
    let volume = patiently(out, "resizing the volume", client.resize_volume(&name, to, force)).await?;
    out.show(&Deed { dry_run, of: Resized { volume, to_size_bytes: size.0 } }, |_| {
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
    patiently(out, "deleting the volume", client.delete_volume(name, force)).await?;
    out.show(&of, |_| format!("deleted volume {name}; it held {holds}"))
}

/// Checks, and repairs unless it is a dry run.
pub async fn check(client: &Client, out: Out, request: CheckRequest, wait: bool) -> Result<ExitCode> {
    let job = client.check(request).await?;
    if !wait {
        out.show(&job, goes_on)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ended = job::follow(client, out, &job).await?;
    if let (JobState::Cancelled, Some(JobResult::Check(so_far))) = (ended.state, &ended.result) {
        // What was found until then is worth to be known.
        out.show(so_far, show::check)?;
    }
    let JobResult::Check(result) = job::ended(ended)? else { bail!(unlike_its_kind(&job)) };
    out.show(&result, show::check)?;
    verdict(out, &result)
}

/// A dry run fails as well where there is something to repair: what it looked at is not as it should be. An error where nothing
/// else says so.
pub fn verdict(out: Out, result: &CheckResult) -> Result<ExitCode> {
    let is_well = result.violations.is_empty() && (result.repaired == 0 || !result.dry_run);
    match out {
        _ if is_well => Ok(ExitCode::SUCCESS),
        Out::Quiet => bail!("{}", show::check(result).replacen("\n  ", " ", 1).replace("\n  ", "; ")),
        Out::Text | Out::Json => Ok(ExitCode::FAILURE),
    }
}

/// An error where a controller that was drained has volumes still.
pub fn has_drained(drained: &DrainedController) -> Result<()> {
    match drained.stays.as_slice() {
        [] => Ok(()),
        [stays] => bail!("the controller keeps volume {}", stays.volume),
        several => bail!("the controller keeps {} volumes, snapshots and clones among them", several.len()),
    }
}

//! `kura pool create` and `kura pool import`: data directories, made without a server.

use crate::ask::export::Exported;
use crate::bar::Bar;
use crate::cli::{DiskArg, PoolCreate, PoolImport};
use crate::serve::data::DataDir;
use crate::serve::disks::{Book, Planned, refuse_single_fast};
use crate::serve::node::{Shape, check_pool, make_pool, open_to_read};
use crate::show::Out;
use anyhow::{Context, Result, bail};
use kura_controller::{DiskClass, FoundDisk, FoundPool, Opener, survey};
use kura_disk::Lock;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// What a data directory has that no disk of its pool has: where it is, and what is lost without it.
const NOT_ON_DISKS: [(&str, &str); 3] = [
    ("schedules.json", "schedules of snapshots"),
    ("replicate", "replication jobs"),
    ("replicas.json", "which volumes are copies of others"),
];

/// Makes a pool of the disks that are named, and its data directory.
pub fn create(create: PoolCreate, out: Out) -> Result<()> {
    DataDir::check_new(&create.data)?;
    let disk = |class| move |disk: DiskArg| Planned { path: disk.path, class, size: disk.size };
    let fast = create.fast.into_iter().map(disk(DiskClass::Fast));
    let planned: Vec<Planned> = fast.chain(create.slow.into_iter().map(disk(DiskClass::Slow))).collect();
    if !create.single_fast {
        refuse_single_fast(
            &planned,
            "say --single-fast: it then has the journals, and serves reads where tier.single_disk names it",
        )?;
    }
    let shape = Shape {
        controllers: create.controllers,
        extent_bytes: create.extent.0,
        journal_bytes: create.journal.0,
        floating_percent: create.floating_percent,
    };
    // What is refused leaves no directory behind.
    check_pool(&planned, shape, create.force, &create.data)?;
    let dry_run = create.dry_run;
    if dry_run {
        let data = std::path::absolute(create.data)?;
        return out.show(&serde_json::json!({ "data": data, "disks": planned.len(), "dry_run": dry_run }), |_| {
            let (disks, data) = (planned.len(), data.display());
            format!("would create a pool of {disks} disks in {data}: what they hold would be lost")
        });
    }
    let mut data = DataDir::open(&create.data)?;
    let bar = Bar::spinner(out, format!("making a pool of {} disks", planned.len()));
    make_pool(&planned, shape, create.force, &data, &Book::open(&data)?)?;
    drop(bar);
    data.finish()?;
    out.show(&serde_json::json!({ "data": data.path(), "disks": planned.len(), "dry_run": dry_run }), |_| {
        let data = data.path().display();
        let disks = planned.len();
        let alone =
            if disks == 1 { "\nWith one disk nothing is redundant: create volumes with --layout none" } else { "" };
        format!("created a pool of {disks} disks in {data}: serve it with `kura serve --data {data}`{alone}")
    })
}

/// A disk of an imported pool.
#[derive(Serialize)]
struct ImportedDisk {
    id: u16,
    uuid: Uuid,
    class: &'static str,
    journals: bool,
    /// Absent where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

/// A pool that has a data directory again.
#[derive(Serialize)]
struct Imported {
    data: PathBuf,
    pool: Uuid,
    generation: u64,
    controllers: u16,
    disks: Vec<ImportedDisk>,
    /// What the lost directory had and this one has not.
    lost: Vec<&'static str>,
}

/// Makes a data directory for a pool that has lost its own. The disks are only read.
pub fn import(import: &PoolImport, out: Out) -> Result<()> {
    let named = import.disks.iter().map(|path| named(path)).collect::<Result<Vec<_>>>()?;
    // Twice the same disk is told by its label, and not as a lock that this process holds itself.
    let (paths, distinct): (Vec<String>, BTreeSet<PathBuf>) = named.into_iter().unzip();
    let _locks = distinct.into_iter().map(Lock::device).collect::<kura_block::Result<Vec<_>>>()?;
    let pool = kura_disk::run(async |_| survey(&paths, &(Box::new(open_to_read) as Opener)).await)??;
    check_members(&pool, &paths, import.incomplete)?;
    let exported = import.export.as_deref().map(|path| Exported::read(path, &pool)).transpose()?;
    let mut data = DataDir::adopt(&import.data)?;
    let here = pool.disks.iter().filter_map(|disk| Some((Uuid::from_bytes(disk.uuid), disk.path.clone()?)));
    Book::new(&data).note(here)?;
    exported.iter().try_for_each(|exported| exported.put(&data))?;
    data.finish()?;
    // What an export has not, there was not.
    let lost = if exported.is_some() { Vec::new() } else { NOT_ON_DISKS.iter().map(|(_, what)| *what).collect() };
    let imported = Imported {
        data: data.path().to_owned(),
        pool: Uuid::from_bytes(pool.uuid),
        generation: pool.generation,
        controllers: pool.controllers,
        disks: pool.disks.iter().map(imported_disk).collect(),
        lost,
    };
    out.show(&imported, told)
}

/// A disk's path, by which every start finds it, and what that is now: links are followed anew each time.
fn named(path: &Path) -> Result<(String, PathBuf)> {
    let real = path.canonicalize().with_context(|| path.display().to_string())?;
    let path = std::path::absolute(path)?.into_os_string().into_string();
    Ok((path.map_err(|path| anyhow::anyhow!("{}: not UTF-8", path.display()))?, real))
}

/// Refuses a pool of which disks are away, unless that is wanted, and disks that are not in it any more.
fn check_members(pool: &FoundPool, paths: &[String], incomplete: bool) -> Result<()> {
    let uuid = Uuid::from_bytes(pool.uuid);
    let is_member = |path: &&String| pool.disks.iter().any(|disk| disk.path.as_ref() == Some(*path));
    if let Some(stranger) = paths.iter().find(|path| !is_member(path)) {
        bail!("{stranger}: has left pool {uuid}: leave it out");
    }
    let is_away = |disk: &&FoundDisk| disk.path.is_none();
    let away: Vec<_> = pool.disks.iter().filter(is_away).map(imported_disk).collect();
    if away.is_empty() || incomplete {
        return Ok(());
    }
    let away: Vec<_> = away.iter().map(|disk| format!("disk {} ({}, {})", disk.id, disk.class, disk.uuid)).collect();
    bail!(
        "pool {uuid} has {} disks, and these are not among those named: {}; name them too, or say --incomplete if they are \
         lost",
        pool.disks.len(),
        away.join(", ")
    )
}

fn imported_disk(disk: &FoundDisk) -> ImportedDisk {
    let class = kura_admin::DiskClass::from(disk.class).name();
    let (id, uuid, journals) = (disk.id, Uuid::from_bytes(disk.uuid), disk.has_journals);
    ImportedDisk { id, uuid, class, journals, path: disk.path.clone() }
}

fn told(imported: &Imported) -> String {
    let data = imported.data.display();
    let here = imported.disks.iter().filter(|disk| disk.path.is_some()).count();
    let mut lines = vec![format!(
        "imported pool {} with {here} of its {} disks into {data}: serve it with `kura serve --data {data}`",
        imported.pool,
        imported.disks.len()
    )];
    if !imported.lost.is_empty() {
        lines.push(format!("not recovered, since no disk has it: {}", imported.lost.join(", ")));
    }
    if imported.lost.contains(&NOT_ON_DISKS[2].1) {
        lines.push(
            "volumes that were copies of others are ordinary volumes now, and clients may write to them. Copies and their \
             sources alike have snapshots named replica-...: `kura snapshot list` shows them; `kura replicate run --adopt` \
             makes a copy follow its source again"
                .to_owned(),
        );
    }
    lines.join("\n")
}

//! The node of a configuration, with models in place of its disks.

use crate::cli::ModelArg;
use crate::config::{Config, Disk, Pool};
use crate::serve::disks::default_disks;
use crate::serve::node::{Shape, limits};
use anyhow::{Context, Error, Result};
use kura_controller::{DiskClass, TierConfig};
use kura_replay::{NodeDisk, NodeSpec, NodeTier};
use kura_sim::Model;
use std::path::{Path, PathBuf};

/// The node of a configuration: made by what `kura serve` makes its own with, so that every key of `[pool]` and `[tier]` counts.
/// It has one controller unless the configuration says more: a server takes as many as there are cores, and results are not
/// to depend on these.
pub fn node(config: &Config, models: &[ModelArg]) -> Result<NodeSpec> {
    let pool = &config.pool;
    let (mut disks, mut paths) = (Vec::new(), Vec::new());
    for (class, size_bytes, model, path) in members(pool)? {
        let asked = models.iter().rev().find(|asked| asked.class == class).map(|asked| asked.model);
        let model = asked.or(model).unwrap_or(match class {
            DiskClass::Fast => Model::Nvme,
            DiskClass::Slow => Model::Hdd7200,
        });
        let name = kura_admin::DiskClass::from(class).name();
        let number = disks.iter().filter(|disk: &&NodeDisk| disk.class == class).count();
        disks.push(NodeDisk { name: format!("{name}{number}"), class, size_bytes, model });
        paths.push(path);
    }
    let Shape { controllers, extent_bytes, journal_bytes, floating_percent } = pool.into();
    // All that a server's controllers are told, but where that is about a start after a crash.
    let kura_controller::Config { settings, disk_timeout, journal: _, degraded: _ } = limits(pool, false);
    let tier = config.tier.config(extent_bytes).map_err(Error::msg)?;
    Ok(NodeSpec {
        controllers: controllers.unwrap_or(1),
        extent_bytes,
        journal_bytes,
        floating_percent,
        settings,
        disk_timeout_s: disk_timeout.as_secs(),
        tier: tier.map(|tier| of_tier(tier, &disks, &paths)).transpose()?,
        disks,
    })
}

/// What decides about the fast tier; the only fast disk is known by its name here.
fn of_tier(tier: TierConfig, disks: &[NodeDisk], paths: &[Option<PathBuf>]) -> Result<NodeTier> {
    let TierConfig { settings, single_disk } = tier;
    let named = |single: String| {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let mut all = disks.iter().zip(paths);
        let is_it = |(disk, path): &(&NodeDisk, &Option<PathBuf>)| {
            disk.name == single || path.as_deref().is_some_and(|path| real(path) == Path::new(&single))
        };
        let found = all.find(is_it).map(|(disk, _)| disk.name.clone());
        found.with_context(|| {
            let names: Vec<_> = disks.iter().map(|disk| disk.name.as_str()).collect();
            format!(
                "tier.single_disk: {single} is not a disk of the pool: name the path of one, or one of {}",
                names.join(", ")
            )
        })
    };
    Ok(NodeTier { settings, single_disk: single_disk.map(named).transpose()? })
}

/// Class, size in bytes, model and path of a disk.
type Member = (DiskClass, u64, Option<Model>, Option<PathBuf>);

/// The disks, with model and path where the configuration says them.
fn members(pool: &Pool) -> Result<Vec<Member>> {
    if pool.disks.is_empty() {
        return Ok(default_disks().map(|(_, class, size)| (class, size.0, None, None)).collect());
    }
    let member = |disk: &Disk| {
        let model = disk.model.as_ref().map(|model| *model.get_ref());
        let size_bytes = match disk.path() {
            // What is there counts: the size is for the file that is made where nothing is.
            Some(path) if path.exists() => Some(kura_disk::probe(path)?.size_bytes),
            _ => disk.size().map(|size| size.0).or(model.and_then(|model| model.size_bytes())),
        };
        let size_bytes = size_bytes.context("a disk without a size: add size = \"...\" to it")?;
        Ok(((*disk.class.get_ref()).into(), size_bytes, model, disk.path().map(Path::to_path_buf)))
    };
    pool.disks.iter().map(member).collect()
}
